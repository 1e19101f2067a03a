"""Shipped tables: lengths, arrival counts, hour factors. See README.md here."""
