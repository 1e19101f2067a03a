"""What an episode leaves behind: `result` is the whole of it, `series` its columns by interval.

`streamed_columns` keeps what a run of many millions of requests may forget, `region_result` is what clusters
with regions add, `episode_plot` the picture.
"""
