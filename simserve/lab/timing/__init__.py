"""The timing of the kernels of a card that lies in this machine."""
