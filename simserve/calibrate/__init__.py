"""Calibration, the offline side of costs: read kernel timings, fit the forms of cost/forms, report their errors."""
