"""Notes what a rank of a run sees and computes, whichever launcher started it.

Python loads this by itself where its folder is first on PYTHONPATH. It belongs to the tests, and
shares nothing with the hooks: it looks at torch from outside of whatever else is put around it, and
so begins only with the first forward pass. One line of JSON an event, in OBSERVER_LOG/RANK.jsonl:

| event | digests of |
|---|---|
| forward | what a module is given that no other module calls |
| backward | every p.grad as `backward()` returns |
| gradients | every p.grad as an optimizer is about to step |
| parameters | all parameters when it has stepped |
| exception | the type of what the script ends with |

What the script prints goes to RANK.out. With OBSERVER_VALUES=1 numbers stand beside the digests.
"""

import ctypes
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import weakref

MOST_VALUES = 256
"""Numbers of a tensor that are noted, evenly spread over it."""


class Observer:
    """One rank's notes."""

    def __init__(self, folder, rank, values):
        self._pid = os.getpid()
        self._values = values
        path = os.path.join(folder, f"{rank}.jsonl")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        printed = os.open(os.path.join(folder, f"{rank}.out"), os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(printed, 1)
        os.close(printed)
        self._excepthook = sys.excepthook
        sys.excepthook = self._failing
        self._depth = 0
        self._roots = []  # weak references, in the order of their first call
        self._within = False  # a backward that another one calls is a part of it
        self._attached = False

    def note(self, event, content):
        if os.getpid() == self._pid:
            os.write(self._file, json.dumps([event, content]).encode() + b"\n")

    def _failing(self, kind, error, trace):
        self.note("exception", [kind.__name__])
        self._excepthook(kind, error, trace)

    # --------------------------------------------------------------------------- torch

    def torch_arrived(self, torch):
        calls = sys.modules["torch.nn.modules.module"]
        compiling = torch.compiler.is_compiling

        def entered(module, args):
            if compiling():
                return
            self._depth += 1
            if self._depth == 1 and os.getpid() == self._pid:
                self._attach(torch)
                self._know(module)
                # Hooks for all modules are not given them.
                named = sys._getframe(1).f_locals.get("kwargs", {})
                self.note("forward", self._several([args, named]))

        def left(module, args, result):
            if not compiling():
                self._depth -= 1

        calls.register_module_forward_pre_hook(entered)
        calls.register_module_forward_hook(left, always_call=True)

    def _know(self, root):
        if all(one() is not root for one in self._roots):
            self._roots.append(weakref.ref(root))

    def _attach(self, torch):
        """Around all that others have put around torch until now."""
        if self._attached:
            return
        self._attached = True
        from torch.optim import optimizer

        torch.Tensor.backward = self._around(torch.Tensor.backward)
        torch.autograd.backward = self._around(torch.autograd.backward)
        optimizer.register_optimizer_step_pre_hook(self._stepping)
        optimizer.register_optimizer_step_post_hook(self._stepped)

    def _around(self, original):
        def backward(*args, **kwargs):
            outermost, self._within = not self._within, True
            try:
                original(*args, **kwargs)
            finally:
                self._within = not outermost
            if outermost:
                self.note("backward", self._gradients(self._parameters()))

        return backward

    def _stepping(self, optimizer, args, kwargs):
        self.note("gradients", self._gradients(self._parameters(optimizer)))

    def _stepped(self, optimizer, args, kwargs):
        self.note("parameters", [self._tensor(p) for p in self._parameters(optimizer)])

    # --------------------------------------------------------------------------- contents

    def _parameters(self, optimizer=None):
        found = {}
        for reference in self._roots:
            root = reference()
            if root is not None:
                found.update((id(p), p) for p in root.parameters())
        if optimizer is not None:
            for group in optimizer.param_groups:
                found.update((id(p), p) for p in group["params"])
        return list(found.values())

    def _gradients(self, parameters):
        return [None if p.grad is None else self._tensor(p.grad) for p in parameters]

    def _several(self, value):
        """Whatever a forward pass is given, as a flat list."""
        import torch

        if isinstance(value, torch.Tensor):
            return [self._tensor(value)]
        if isinstance(value, dict):
            value = [part for key in value for part in (key, value[key])]
        if isinstance(value, (list, tuple)):
            return [part for one in value for part in self._several(one)]
        if value is None or isinstance(value, (bool, int, float, str)):
            return [repr(value)]
        return [type(value).__name__]

    def _tensor(self, tensor):
        """[shape, digest], and some of its numbers where they are wanted."""
        tensor = getattr(tensor, "_local_tensor", tensor).detach()
        shape = f"{tensor.dtype}{list(tensor.shape)}"
        if not tensor.numel() or not tensor.untyped_storage().size():
            return [shape, "nothing is stored"]
        whole = tensor.contiguous()
        content = ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size())
        found = [shape, hashlib.blake2b(content, digest_size=8).hexdigest()]
        if self._values and whole.dtype.is_floating_point:
            flat = whole.reshape(-1)
            found.append(flat[:: -(-len(flat) // MOST_VALUES)].double().tolist())
        return found


class Arrival:
    """Finds torch as the other finders do, and tells when it has been executed."""

    def __init__(self, observer):
        self._observer = observer
        self._asking = False

    def find_spec(self, name, path, target=None):
        if name != "torch" or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            self._observer.torch_arrived(module)

        spec.loader.exec_module = exec_module
        return spec


# Programs that the script starts are not ours to watch.
folder, rank = os.environ.get("OBSERVER_LOG"), os.environ.get("RANK")
if folder and rank is not None:
    del os.environ["OBSERVER_LOG"]
    values = os.environ.pop("OBSERVER_VALUES", "") == "1"
    sys.meta_path.insert(0, Arrival(Observer(folder, rank, values)))
