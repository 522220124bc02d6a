"""What people look at: figures, the terminal table, the HTML report and traces, all made from stored frames."""
