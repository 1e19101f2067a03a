"""SageServe's figures and tables (see `experiments.harness`)."""
