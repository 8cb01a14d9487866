"""A stage of llm-perf that samples the workload's Python stacks with py-spy."""
