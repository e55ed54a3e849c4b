"""Programs to read, to run, and to start from. They use only the public names of statelog."""
