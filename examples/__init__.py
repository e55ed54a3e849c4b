"""Programs to read, to run, and to start one's own from. They use the public names of statelog and nothing else."""
