"""Autoscalers that people run: Knative's, Ray Serve's, KEDA's, llm-d's, Dynamo's and Llumnix's own.

One module per rule, the rule as plain functions, and a policy that feeds them. All of them know no request
classes (`baselines.fleet.UniformPolicy`): per LLM one pool, requests dealt to the instance with the fewest,
vLLM's default batch limit of 256. What all of them measure is what has arrived: users of several of these
systems reported that demand counted from completions makes a saturated cluster look idle.
"""
