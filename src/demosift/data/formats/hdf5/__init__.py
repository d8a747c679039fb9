"""The native format: HDF5 in the D4RL layout, read and written whole, read in blocks, or reduced to what is kept."""
