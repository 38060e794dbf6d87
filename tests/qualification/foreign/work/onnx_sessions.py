"""ONNX Runtime: a network of a few layers, run by several sessions with threads, with its arena and without."""

import hashlib

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

random = numpy.random.default_rng(7)
names, nodes, weights, last = [], [], [], "x"
for layer in range(6):
    weight = (random.standard_normal((512, 512)) / 23).astype(numpy.float32)
    weights.append(numpy_helper.from_array(weight, f"w{layer}"))
    nodes += [helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"]), helper.make_node("Tanh", [f"m{layer}"], [f"t{layer}"])]
    last = f"t{layer}"
graph = helper.make_graph(
    nodes, "layers",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 512])],
    [helper.make_tensor_value_info(last, TensorProto.FLOAT, [None, 512])],
    weights,
)  # fmt: skip
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
onnx.checker.check_model(model)
for has_arena in (True, False):
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena, options.intra_op_num_threads, options.log_severity_level = has_arena, 2, 3
    sessions = [onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]) for _ in range(3)]
    total = hashlib.sha256()
    for rows in (1, 64, 4096, 7):
        x = random.standard_normal((rows, 512)).astype(numpy.float32) if has_arena else numpy.full((rows, 512), 0.1, numpy.float32)
        for session in sessions:
            total.update(numpy.round(session.run(None, {"x": x})[0], 3).tobytes())
    print(has_arena, total.hexdigest()[:16])
