"""Kernel timings, and the fits of the forms of cost/forms to them."""
