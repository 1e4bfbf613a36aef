"""Recipe of the default model; not in the wheel.

Reading order: `facts` (what is known of a run), `workplace` (real commands in a temporary copy of a package), `toys` (small functions
with a bug and a test), `interfaces` (the tools of an agent), `observed` (what an output tells), `agent` (the scripted agent),
`service_desk` (runs over JSON tools), `intercode` (recorded episodes), `wording` (sentences of agents and environments), `styles`
(runs as messages), `truths` and `asks` (questions with rule truth), `pack` (token shards), `shards` (batches), `network` (the training
forward pass), `train`, `held_out_labels` and `held_out` (the sources that are never trained on), `scores`, `evaluate`, `one_call.sh`.
README.md has the commands.
"""
