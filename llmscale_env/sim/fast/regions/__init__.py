"""What regions add on top: rules of scaling at an endpoint, queue managers, and orders to both."""
