"""What a training run is told, and what these words mean.

`config` puts an environment's defaults and the words of a command line together and checks them, with the
sections that `settings` declares. `environments` makes of them scenarios, environments and codecs. No module
here imports torch, so a slip is answered at once.
"""
