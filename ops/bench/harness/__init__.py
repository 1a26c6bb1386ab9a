"""What every bench needs: processes, windows, baselines and reports."""
