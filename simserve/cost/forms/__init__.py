"""Kernel times as formulas with few, readable coefficients; one file per family of kernels.

A form is a frozen dataclass of coefficients: shares of a GPU's data-sheet peaks, and times. The same coefficients
therefore scale to a GPU without timings. `lab/kernels/` fits them; arrays in, seconds out.
"""
