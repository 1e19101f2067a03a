"""Where weights lie and how they come to an instance: from host memory, by multicast, live."""
