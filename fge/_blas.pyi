# Nothing to call: importing it hands scipy's BLAS to the core.
