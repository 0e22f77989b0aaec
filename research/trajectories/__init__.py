"""Trajectories recorded update by update, for fits of implicit momentum."""
