"""The offline side of costs: read kernel timings, fit the forms of cost/forms to them, say how well they fit."""
