"""The life of instances: orders to them (`scaling`), their states (`lifecycle`), spot VMs."""
