"""Recipe of the default model; not in the wheel.

Reading order: `facts` (what is known of a run), `workplace` (real commands in a temporary copy of a package), `toys` (small
functions with a bug and a test), `agent` (the scripted agent), `interfaces` (the tools it acts through), `service_desk` (runs over
JSON tools), `intercode` (recorded episodes), `wording` (sentences of agents and environments), `styles` (runs as messages),
`asks` (questions with rule truth), `pack` (token shards), `network` (the training forward pass), `train`, `held_out` (labels of
the sources that are never trained on), `scores`, `evaluate`. README.md has the commands.
"""
