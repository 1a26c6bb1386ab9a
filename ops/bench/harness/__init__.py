"""The harness of all benches: processes, load windows, baselines and reports."""
