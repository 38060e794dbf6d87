"""PyTorch on the CPU under the guard. On a GPU it is tested in tests/gpu: its CUDA runtime takes no simulated driver."""

import pytest

MIB, GIB = 1 << 20, 1 << 30

HEAD = """
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
MIB, GIB = 1 << 20, 1 << 30
def say(**pairs):
    for key, value in pairs.items():
        print(key, value, flush=True)
def take(size):
    return torch.ones(size, dtype=torch.uint8)
def refused(function, *arguments):
    '''What it raises, in a line.'''
    try:
        function(*arguments)
    except RuntimeError as error:
        return str(error).replace("\\n", " ")
    return "none"
"""


def test_it_finds_no_gpu_and_does_not_complain(client):
    said = client.same(HEAD + "say(available=torch.cuda.is_available(), count=torch.cuda.device_count())")
    assert said == "available False\ncount 0\n"


def test_tensor_on_cuda_raises_as_without_the_guard(client):
    said = client.same(HEAD + "say(cuda=refused(lambda: torch.ones(1, device='cuda')))")
    assert said.startswith("cuda Found no NVIDIA driver")


def test_tensor_over_the_limit_is_a_runtime_error(client):
    text = "say(large=refused(take, 2 * GIB)); small = take(64 * MIB); say(sum=int(small.sum()))"
    done = client.values(HEAD + text, SPARKGUARD_LIMIT="1G")
    assert "can't allocate memory" in done.large and done.sum == 64 * MIB
    assert [(r["call"], r["reason"]) for r in done.process["refusals"]] == [("posix_memalign", "limit")]


def test_observing_refuses_no_tensor(client):
    text = "say(large=refused(take, 2 * GIB))"
    done = client.values(HEAD + text, SPARKGUARD_LIMIT="1G", SPARKGUARD_MODE="observe")
    words = [(r["call"], r["reason"]) for r in done.process["refusals"]]
    assert done.large == "none" and words[0] == ("posix_memalign", "limit"), words


def test_training_gives_the_same_losses_to_the_bit(client):
    said = client.same(
        HEAD
        + """
torch.manual_seed(1)
torch.set_num_threads(2)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 14 * 14, 64), torch.nn.ReLU(),
    torch.nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images, labels = torch.randn(64, 3, 16, 16), torch.randint(10, (64,))
for step in range(30):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""
    )
    losses = [float.fromhex(line) for line in said.splitlines()]
    assert len(losses) == 30 and losses[-1] < losses[0] / 2


LOADER = """
def load(data):
    return DataLoader(data, batch_size=256, num_workers=2, multiprocessing_context="fork")
"""


def test_workers_of_a_data_loader_bring_everything(client):
    said = client.same(
        HEAD
        + LOADER
        + """
data = TensorDataset(torch.arange(4096 * 256, dtype=torch.float32).reshape(4096, 256))
batches = [batch for (batch,) in load(data)]
say(batches=len(batches), shared=all(batch.is_shared() for batch in batches))
say(right=torch.equal(torch.cat(batches), data.tensors[0]))
"""
    )
    assert said == "batches 16\nshared True\nright True\n"


def test_worker_that_is_refused_raises_in_the_parent(client):
    text = """
class Hungry(Dataset):
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return 512
    def __getitem__(self, index):
        return take(self.size).sum()
say(large=refused(list, load(Hungry(2 * GIB))), small=sum(int(batch.sum()) for batch in load(Hungry(MIB))))
"""
    done = client.values(HEAD + LOADER + text, SPARKGUARD_LIMIT="1G")
    assert "DataLoader worker process" in done.large and "can't allocate memory" in done.large
    assert done.small == 512 * MIB
    children = [p for p in client.guard.processes() if p["pid"] != done.process["pid"] and p["refused_count"]]
    assert children and all(p["state"] == "exited" for p in children)


SHARE = """
import torch.multiprocessing
torch.set_num_threads(1)  # libgomp's threads do not survive a fork
def shmem():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("RssShmem"))
def child(queue, answers):
    tensor = queue.get()
    answers.put((int(tensor.sum()), shmem()))
"""
STRATEGIES = ["file_descriptor", "file_system"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shared_tensor_is_mapped_in_each_process_that_has_it(client, strategy):
    text = f"""
torch.multiprocessing.set_sharing_strategy({strategy!r})
before, tensors = shmem(), [take(64 * MIB).share_memory_() for _ in range(2)]
say(shared=shmem() - before)
context = torch.multiprocessing.get_context("fork")
queue, answers = context.Queue(), context.Queue()
process = context.Process(target=child, args=(queue, answers))
process.start()
del tensors[1:]
more = take(32 * MIB).share_memory_()
queue.put(more)
total, seen = answers.get()
process.join()
say(sum=total, seen=seen, status=process.exitcode, child=process.pid)
"""
    done = client.values(HEAD + SHARE + text)
    assert 128 * MIB <= done.shared <= 136 * MIB
    assert (done.sum, done.status) == (32 * MIB, 0) and done.seen >= 32 * MIB
    blank = client.values(HEAD + SHARE).process["domains"]["mapped"]["peak_bytes"]
    assert 128 * MIB <= done.process["domains"]["mapped"]["peak_bytes"] - blank <= 192 * MIB
    child = client.guard.process(done.child)
    assert child["domains"]["mapped"]["peak_bytes"] - blank >= 128 * MIB  # what it inherited, and what came to it


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shared_tensor_over_the_limit_is_a_runtime_error(client, strategy):
    text = f"""
torch.multiprocessing.set_sharing_strategy({strategy!r})
say(large=refused(lambda: torch.empty(2 * GIB, dtype=torch.uint8).share_memory_()))
say(direct=refused(lambda: torch.UntypedStorage._new_shared(2 * GIB)))
say(small=int(take(MIB).share_memory_().sum()))
"""
    done = client.values(HEAD + SHARE + text, SPARKGUARD_LIMIT="1G")
    assert "can't allocate memory" in done.large and "Cannot allocate memory" in done.direct and done.small == MIB
    assert [(r["call"], r["domain"]) for r in done.process["refusals"]] == [("posix_memalign", "heap"), ("mmap", "mapped")]
