"""The HTTP edge of a node. Starlette and uvicorn are known here alone."""
