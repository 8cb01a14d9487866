"""What hardware allows for a model, what to expect, and which deployment to buy.

Prediction of one model: `predict_request` checks the arguments, `source` finds a model's config.json, `machine` this
machine's device, `counted` and `vision_params` ask torch where no closed form exists. `predictions` computes rows,
`prediction` has their columns, `prediction_table` prints them, `prediction_files` writes CSV and a picture.

Deployment: `deployments` finds layouts, requests in flight and replicas from such rows, `disaggregation` sizes pools
for prefill and decode, `calibration` answers from a measured load instead, `plan_table` prints, with `launch_command`.

`capture_context` predicts the model behind a capture, for its report.

Called by `llm-perf predict`, `plan` and `analyze`. Start with `predict_request`.
"""
