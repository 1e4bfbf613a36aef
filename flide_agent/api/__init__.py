"""HTTP. Nothing is decided here: bodies come in, `decide` and `sessions` answer, errors get their shape.

Reading order: `body` (bytes to JSON, with caps), `errors` (every error body), `backend` (what is asked of the service),
`routes` (the handlers), `app`, `server`. With front-end processes: `frames`, `front` and `remote`, `fleet` and `desk`.
"""
