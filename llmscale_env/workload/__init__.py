"""Requests: SLO classes, arrival processes, length distributions, trace files, mixes."""

from llmscale_env.workload.config import (
    BATCH,
    DEFAULT_CLASSES,
    INTERACTIVE,
    ArrivalConfig,
    BatchQueueConfig,
    LengthConfig,
    PredictorConfig,
    SLOClass,
    StreamConfig,
    WorkloadConfig,
)
from llmscale_env.workload.generate import RequestChunk, generate_requests, request_chunks
from llmscale_env.workload.requests import PS_PER_S, RequestTable

__all__ = [
    "BATCH",
    "DEFAULT_CLASSES",
    "INTERACTIVE",
    "PS_PER_S",
    "ArrivalConfig",
    "BatchQueueConfig",
    "LengthConfig",
    "PredictorConfig",
    "RequestChunk",
    "RequestTable",
    "SLOClass",
    "StreamConfig",
    "WorkloadConfig",
    "generate_requests",
    "request_chunks",
]
