"""How long a kernel takes, as formulas with few coefficients that a person can read. One file a family of kernels.

A form is a frozen dataclass of coefficients: shares of a GPU's data-sheet peaks, and times. So the same coefficients
scale to a GPU that nobody measured. `calibrate/` fits them; arrays in, seconds out.
"""
