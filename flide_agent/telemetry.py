"""OpenTelemetry spans of decisions, when the extra 'otel' is installed and `telemetry` is set.

A decision is one span with a child for each of its parts, made when it is answered, from the times that it measured anyway.
It hangs on the client's trace when the request carries `traceparent`. No text of a request is recorded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from flide_agent import __version__
from flide_agent.decision import Decision
from flide_agent.errors import StartError
from flide_agent.logs import request_id, traceparent

Watcher = Callable[[Decision], None]


def start() -> tuple[Watcher, Callable[[], None]]:
    """(what to call with each decision, what to call at the end). Spans go where the OTEL_EXPORTER_OTLP_* variables say.

    Raises StartError when the extra is not installed.
    """
    try:
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        resources = importlib.import_module("opentelemetry.sdk.resources")
    except ImportError as e:
        raise StartError(
            f"telemetry needs the extra 'otel': pip install 'flide-agent[serve,otel]' ({e.name} is missing)"
        ) from e
    resource = resources.Resource.create({"service.name": "flide-agent", "service.version": __version__})
    provider = sdk.TracerProvider(resource=resource)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return watcher(provider), provider.shutdown


def watcher(provider: Any) -> Watcher:
    """Makes the spans of each decision with a tracer of this provider."""
    api = importlib.import_module("opentelemetry.trace")
    propagation = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
    tracer, propagator = provider.get_tracer("flide_agent", __version__), propagation.TraceContextTextMapPropagator()

    def watch(decision: Decision) -> None:
        above = propagator.extract({"traceparent": traceparent.get()}) if traceparent.get() else None
        begin = int(decision.started * 1e9)
        span = tracer.start_span(
            "decide", context=above, kind=api.SpanKind.SERVER, start_time=begin, attributes=_attributes(decision)
        )
        inside, at = api.set_span_in_context(span), begin
        order = ("render", "find", "queue", "engine", "keep")
        for part in order:
            if part in decision.parts:
                end = at + int(decision.parts[part] * 1e6)
                tracer.start_span(part, context=inside, start_time=at).end(end)
                at = end
        span.end(max(at, begin + int(decision.seconds * 1e9)))

    return watch


def _attributes(decision: Decision) -> dict[str, Any]:
    out: dict[str, Any] = {
        "flide.m": decision.m, "flide.computed_tokens": decision.computed_tokens, "flide.tier": decision.tier or "none",
        "flide.questions": decision.questions, "flide.request_id": request_id.get(), "flide.tenant": decision.tenant,
    }  # fmt: skip
    return out | ({"flide.reason": decision.reason} if decision.reason else {})
