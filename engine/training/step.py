"""One training step on a device: forward, backward, clipping and AdamW, on a GPU as one captured graph per batch length.

All parameters lie in one flat tensor, and so do gradients and moments: an update is a few large operations, and several GPUs share one sum.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from training import kernels, trial
from training.network import Network, losses
from training.pieces import PLAIN, compiled
from training.shards import Batches, Shape

BETAS = (0.9, 0.95)
DECAY = 0.1
EPS = 1e-8
AHEAD = 4
"""Steps that the host may be ahead of the device."""


class Flat:
    """The parameters of a network as views of one tensor, with AdamW on it. The last three places of `grad` are not gradients:
    answer loss, language loss and learning rate, so that one sum over the GPUs gives the mean of them too."""

    def __init__(self, network: Network, device: str) -> None:
        network.to(device)
        self.params = [value for _, value in network.named()]
        self.sizes = [value.numel() for value in self.params]
        self.values = torch.cat([value.detach().flatten() for value in self.params])
        at = 0
        for value, size in zip(self.params, self.sizes, strict=True):
            value.data = self.values[at : at + size].view(value.shape)
            at += size
        decays = [torch.full((n,), DECAY if v.dim() > 1 else 0.0) for v, n in zip(self.params, self.sizes, strict=True)]
        self.decay = torch.cat(decays).to(device)
        self.grad = torch.zeros(at + 3, device=device)
        self.first, self.second = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.count = torch.zeros((), device=device)
        self.sums = torch.zeros(3, device=device)  # answer loss, language loss, updates left out; since they were read last

    def state(self) -> dict[str, Tensor]:
        """Copies of weights, moments and the number of updates."""
        return {name: getattr(self, name).clone() for name in ("values", "first", "second", "count")}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` gave, in place."""
        for name, value in state.items():
            getattr(self, name).copy_(value)

    def gather(self, total: Tensor, answer: Tensor, language: Tensor) -> None:
        """Gradients of `total` and the two losses into `grad`, the learning rate left as it is."""
        grads = torch.autograd.grad(total, self.params)
        torch.cat([*(g.flatten() for g in grads), answer.detach().view(1), language.detach().view(1)], out=self.grad[:-1])

    @torch.no_grad()
    def update(self, ranks: int = 1) -> None:
        """AdamW with gradients clipped at norm 1. A gradient that is not finite changes nothing and is counted."""
        mean = self.grad / ranks
        grad, told, rate = mean[:-3], mean[-3:-1], mean[-1]
        size = grad.norm()
        good = torch.isfinite(size)
        grad = torch.where(good, grad * (1.0 / (size + 1e-6)).clamp(max=1.0), 0.0)
        self.count += good
        done = self.count.clamp(min=1)
        self.first.copy_(torch.where(good, torch.lerp(grad, self.first, BETAS[0]), self.first))
        self.second.copy_(torch.where(good, torch.lerp(grad * grad, self.second, BETAS[1]), self.second))
        rate = rate * good
        self.values.mul_(1.0 - rate * self.decay)
        grown = (self.second / (1.0 - BETAS[1] ** done)).sqrt() + EPS
        self.values.sub_(rate / (1.0 - BETAS[0] ** done) * self.first / grown)
        bad = (~good).float().view(1)
        self.sums += torch.cat([torch.where(good, told, 0.0), bad])


class Step:
    """Takes batches of a Feed's form. graphs, compile: whether passes are captured, and their pointwise parts compiled (GPU only)."""

    def __init__(
        self, network: Network, batches: Batches, device: str, language: float, graphs: bool, compile: bool, ranks: int = 1
    ) -> None:
        self.network, self.batches, self.device, self.language, self.ranks = network, batches, device, language, ranks
        self.cuda = device.startswith("cuda")
        self.flat = Flat(network, device)
        self.pieces = compiled() if compile else PLAIN
        self._wanted = graphs and self.cuda
        size = max(batches.shape(n).numbers for n in batches.by_length)
        self.input = torch.zeros(size, dtype=torch.int32, device=device)
        # One host buffer for each step that may be under way.
        self.hosts = [torch.zeros(size, dtype=torch.int32, pin_memory=self.cuda) for _ in range(AHEAD)]
        self._done: list[torch.cuda.Event | None] = [None] * AHEAD
        self.passes: dict[int, Callable[[], None]] = {}
        self._update: Callable[[], None] = lambda: self.flat.update(self.ranks)
        self.taken = 0

    def prepare(self) -> None:
        """Run every length once, longest first, and capture it. Batches that do not fit the memory get half the tokens.

        What cannot be compiled or captured runs as it stands; that is printed."""
        if self.cuda:
            self._try("the kernel of inverses", self._check_kernel, kernels.disable)
        if self.pieces is not PLAIN:
            self._try("compiling", lambda: self._once(min(self.batches.by_length)), self._without_compiling)
        while not self._prepared():
            self.passes.clear()
            torch.cuda.empty_cache()
            if self.batches.tokens <= min(self.batches.by_length):
                raise torch.OutOfMemoryError("a single short trunk does not fit the device")
            self.batches.tokens //= 2
            print(f"out of memory; going on with {self.batches.tokens} tokens a batch", flush=True)

    def _prepared(self) -> bool:
        try:
            if self._wanted:
                self._try("capturing", self._capture, self._without_graphs)
            if not self._wanted:
                for length in sorted(self.batches.by_length, reverse=True):
                    self._once(length)
                    self.passes[length] = functools.partial(self._pass, self.batches.shape(length))
        except torch.OutOfMemoryError:
            return False
        return True

    def _once(self, length: int, i: int = 0) -> None:
        """A pass over a real batch, with no update."""
        self._load(length, i)
        self._pass(self.batches.shape(length))

    def _load(self, length: int, i: int) -> None:
        """Batch i into the device's input; the host waits for it."""
        self.batches.fill(self.hosts[0], i, length)
        self.input.copy_(self.hosts[0])

    def _pass(self, shape: Shape) -> None:
        self.network.pieces = self.pieces
        try:
            batch = shape.split(self.input[: shape.numbers].long())
            with torch.autocast("cuda" if self.cuda else "cpu", torch.bfloat16, enabled=self.cuda):
                found = losses(self.network, batch, self.language)
            self.flat.gather(*found)
        finally:
            self.network.pieces = PLAIN

    def _capture(self) -> None:
        captured: dict[int, Callable[[], None]] = {}
        plain: list[Tensor] = []
        pool = torch.cuda.graph_pool_handle()
        for length in sorted(self.batches.by_length, reverse=True):
            shape = self.batches.shape(length)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                plain.clear()
                for i in (0, 1):
                    self._once(length, i)
                    plain.append(self.flat.grad.clone())
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self._pass(shape)
            captured[length] = graph.replay
            again = functools.partial(self._again, length, graph.replay)
            print(f"length {length} captured; {trial.gradients(self.flat, plain, again)}", flush=True)
        self.flat.grad.zero_()
        graph, kept = torch.cuda.CUDAGraph(), self.flat.state()
        self._update()  # a rate of zero: moments of a zero gradient, no weight changes
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=pool):
            self.flat.update(self.ranks)
        self.flat.restore(kept)
        told = trial.updates(self.flat, plain, lambda: self.flat.update(self.ranks), graph.replay, 1e-3 * self.ranks)
        print(f"update captured; {told}", flush=True)
        self.passes, self._update = captured, graph.replay
        torch.cuda.empty_cache()

    def _again(self, length: int, replay: Callable[[], None], i: int) -> None:
        self._load(length, i)
        replay()

    def _try(self, what: str, attempt: Callable[[], object], otherwise: Callable[[], object]) -> None:
        begin = time.monotonic()
        try:
            attempt()
            if self.cuda:
                torch.cuda.synchronize()
            print(f"{what}: {time.monotonic() - begin:.1f} s", flush=True)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a compiler or driver may raise: the plain path works without it
            print(f"{what} does not work here, going on without: {type(error).__name__}: {str(error)[:2000]}", flush=True)
            otherwise()

    def _without_graphs(self) -> None:
        self._wanted = False
        self.flat.count.zero_()
        self.flat.sums.zero_()
        self.passes.clear()
        torch.cuda.empty_cache()

    def _without_compiling(self) -> None:
        self.pieces = PLAIN

    def _check_kernel(self) -> None:
        lower = torch.randn(64, 64, 64, device=self.device).tril(-1) * 0.2
        known = torch.linalg.inv(lower.double().cpu() + torch.eye(64))
        apart = (kernels.invert(lower).double().cpu() - known).abs().max().item()
        if not apart < 1e-2 * known.abs().max().item():
            raise RuntimeError(f"it is {apart} off")
        many = torch.randn(8192, 64, 64, device=self.device).tril(-1) * 0.2
        own, library = (_milliseconds(functools.partial(call, many)) for call in (kernels.on_gpu, kernels.by_products))
        print(f"8192 inverses: {own:.3f} ms by the kernel, {library:.3f} ms by products", flush=True)
        if own > library:
            raise RuntimeError("it is slower than products")

    def host(self) -> Tensor:
        """The host buffer for the next batch, once the device no longer reads it."""
        event = self._done[self.taken % AHEAD]
        if event is not None:
            event.synchronize()
        return self.hosts[self.taken % AHEAD]

    def take(self, length: int, rate: float) -> None:
        """A step on the batch in `host()`. It may still be under way on return. rate: of the first rank; the others give 0."""
        at = self.taken % AHEAD
        n = self.batches.shape(length).numbers
        self.input[:n].copy_(self.hosts[at][:n], non_blocking=True)
        if self.cuda:
            event = torch.cuda.Event()
            event.record()
            self._done[at] = event
        self.flat.grad[-1:].fill_(rate * self.ranks)
        self.passes[length]()
        if self.ranks > 1:
            dist.all_reduce(self.flat.grad)
        self._update()
        self.taken += 1

    def read(self, steps: int) -> list[float]:
        """Mean answer loss, language loss and part of updates left out over the `steps` since the last reading. Waits for the device."""
        answer, language, bad = (self.flat.sums / steps).tolist()
        self.flat.sums.zero_()
        kept = max(1.0 - bad, 1e-9)
        return [answer / kept, language / kept, bad]


def _milliseconds(call: Callable[[], object], times: int = 5) -> float:
    """Of one call on the GPU, after a first one."""
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / times
