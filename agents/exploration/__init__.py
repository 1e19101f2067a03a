"""What a network tries: where it begins, how its noise is drawn, how the noise fades.

`prior` makes an untrained network lean towards the cluster as it is; `anchor` keeps a copy of a policy near
it for a while. `held_noise` draws the same noise for several decisions; `sharpening` takes it away towards
the end of a run.
"""
