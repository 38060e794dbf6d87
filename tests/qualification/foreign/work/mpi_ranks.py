"""MPI: ranks that send to each other, reduce, and share a window of memory."""

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
for count in (1, 1000, 300_000, 2_000_000):
    mine, sums, all_of = numpy.full(count, rank + 1.0), numpy.empty(count), numpy.empty(count * size)
    world.Allreduce(mine, sums)
    world.Allgather(mine, all_of)
    got = numpy.empty(count)
    world.Sendrecv(mine, dest=(rank + 1) % size, recvbuf=got, source=(rank - 1) % size)
    if rank == 0:
        print(count, sums[-1], all_of.sum(), got[0], flush=True)
node = world.Split_type(MPI.COMM_TYPE_SHARED)
window = MPI.Win.Allocate_shared(8 << 20 if node.Get_rank() == 0 else 0, 8, comm=node)
shared = numpy.frombuffer(window.Shared_query(0)[0], dtype=numpy.float64)
window.Fence()
shared[rank::size] = rank
window.Fence()
own = MPI.Win.Create(bytearray(1 << 20), comm=world)
own.Fence()
own.Put(numpy.full(1000, rank + 1, dtype=numpy.uint8), (rank + 1) % size)
own.Fence()
if rank == 0:
    print(shared.size, shared.sum(), bytes(own.tomemory()[:4]), flush=True)
own.Free()
window.Free()
