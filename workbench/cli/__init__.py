"""The command line: one file a group of commands, each thin over the room that does the work."""
