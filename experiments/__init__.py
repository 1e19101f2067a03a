"""Every table and figure, and the speed benchmarks: each module here is a command."""
