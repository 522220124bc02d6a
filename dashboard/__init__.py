"""The Streamlit app: reads finished and running runs, and shows the figures that the report shows."""
