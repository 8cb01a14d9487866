"""What hardware allows for a model, what to expect, and which deployment to buy.

Prediction of one model: `predict_request` checks the arguments, `source` finds a model's config.json and `subject`
makes of it what is predicted, `chosen_device` finds the device and `machine` asks this one. `planning_rows` computes
rows, `counted_rows` and `vision_params` ask torch where no closed form exists, `notes` says what was assumed.
`predicted_rows` has the columns, `prediction_table` prints them, `planning_document` and `prediction_files` write them.

Deployment: `answer` goes through devices and dtypes with such rows, `deployments` finds layouts, requests in flight
and replicas, `disaggregation` sizes pools for prefill and decode, `calibration` answers from a measured load instead,
`plan_table` prints, with `launch_command`.

`capture_context` predicts the model behind a capture, for its report.

Called by `llm-perf predict`, `plan` and `analyze`. Start with `predict_request`.
"""
