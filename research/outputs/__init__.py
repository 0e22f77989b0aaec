"""What a run leaves and shows: the files of its workdir, a progress line."""
