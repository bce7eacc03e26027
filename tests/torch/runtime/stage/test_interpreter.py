"""The interpreter on graphs written by hand, against the same operators called in Python."""

import threading

import pytest
import torch
from torch.nn import functional

from pyrannc import _C
from pyrannc.errors import RaNNCError, TraceError


def interpret(text, inputs, state=(), rows=None, objects=()):
    """Runs a graph given as text."""
    interpreter = _C.runtime.Interpreter(_C.ir.parse(text), list(objects))
    return interpreter.run(list(inputs), list(state), inputs[0].shape[0] if rows is None else rows)


def equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


PERCEPTRON = """graph perceptron(%x) -> (%loss, %h)
  input x: float32[B, 4]
  parameter up.weight: float32[8, 4] grad
  parameter up.bias: float32[8] grad
  node up.linear = aten::linear(%x, %up.weight, %up.bias) -> %u in up
    result u: float32[B, 8] grad
  node relu = aten::relu(%u) -> %h
    result h: float32[B, 8] grad
  node mul = aten::mul.Tensor(%h, %h) -> %sq
    result sq: float32[B, 8] grad
  node mean = aten::mean(%sq) -> %loss
    result loss: float32[] grad
"""


def test_a_model_gives_the_bits_of_eager_outputs_and_gradients():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(5, 4), torch.randn(8, 4), torch.randn(8)
    mine = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    interpreter = _C.runtime.Interpreter(_C.ir.parse(PERCEPTRON), [])
    assert interpreter.state_names() == ["up.weight", "up.bias"]
    loss, h = interpreter.run([x], mine, 5)
    loss.backward()

    theirs = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    h_eager = functional.linear(x, *theirs).relu()
    loss_eager = (h_eager * h_eager).mean()
    loss_eager.backward()
    equal([loss, h], [loss_eager, h_eager])
    equal([p.grad for p in mine], [p.grad for p in theirs])


def test_the_same_interpreter_runs_any_number_of_rows():
    # (B, 4) -> (2B, 2) -> the first B+1 of the 2B rows.
    text = """graph g(%x) -> (%n)
  input x: float32[B, 4]
  node view = aten::view(%x, [2*B, 2]) -> %v
    result v: float32[2*B, 2] shares %x
  node narrow = aten::narrow(%v, 0, 0, B+1) -> %n
    result n: float32[B+1, 2] shares %x
"""
    interpreter = _C.runtime.Interpreter(_C.ir.parse(text), [])
    for rows in (1, 3, 2, 3):
        x = torch.randn(rows, 4)
        equal(interpreter.run([x], [], rows), [x.view(2 * rows, 2)[: rows + 1]])


def test_a_number_for_a_tensor_promotes_types_as_in_eager():
    # A 0-dimensional float64 tensor would make the 0-dimensional float16 one float64.
    text = """graph g(%x, %n) -> (%a, %b)
  input x: float16[]
  input n: int64[B]
  node mul = aten::mul.Tensor(%x, 2.5) -> %a
    result a: float16[]
  node add = aten::add.Tensor(%n, B) -> %b
    result b: int64[B]
"""
    x, n = torch.tensor(1.5, dtype=torch.float16), torch.arange(3)
    equal(interpret(text, [x, n], rows=3), [x * 2.5, n + 3])


def test_arguments_take_the_form_that_the_schema_wants():
    # Missing arguments get their defaults, one number fills a list (stride 2 -> [2, 2]), an empty
    # list has no type, integers serve as floats, dtypes are torch's numbers (7: float64).
    text = """graph g(%x, %i) -> (%pool, %cat, %picked, %clamped, %wide, %gelu)
  input x: float32[B, 2, 6, 6]
  input i: int64[2]
  node pool = aten::max_pool2d(%x, 3, [], 1) -> %pool
    result pool: float32[B, 2, 2, 2]
  node cat = aten::cat({%x, %x}, 1) -> %cat
    result cat: float32[B, 4, 6, 6]
  node index = aten::index.Tensor(%x, {none, none, %i}) -> %picked
    result picked: float32[B, 2, 2, 6]
  node clamp = aten::clamp(%x, none, 1) -> %clamped
    result clamped: float32[B, 2, 6, 6]
  node to = aten::to.dtype(%x, 7) -> %wide
    result wide: float64[B, 2, 6, 6]
  node gelu = aten::gelu(%x, approximate) -> %gelu
    result gelu: float32[B, 2, 6, 6]
""".replace("%x, approximate", '%x, "tanh"')
    x, i = torch.randn(3, 2, 6, 6), torch.tensor([4, 1])
    expected = [
        functional.max_pool2d(x, 3, padding=1),
        torch.cat([x, x], 1),
        x[:, :, i],
        x.clamp(max=1),
        x.double(),
        functional.gelu(x, approximate="tanh"),
    ]
    equal(interpret(text, [x, i]), expected)


def test_lists_and_tuples_of_results_are_flattened_and_unused_ones_left_out():
    text = """graph g(%x) -> (%b, %values, %mean)
  input x: float32[B, 6]
  node chunk = aten::chunk(%x, 3, 1) -> none, %b, none
    result b: float32[B, 2] shares %x
  node topk = aten::topk(%x, 2) -> %values, %unused
    result values: float32[B, 2]
    result unused: int64[B, 2]
  node norm = aten::native_layer_norm(%x, [6], none, none, 1e-05) -> none, %mean, none
    result mean: float32[B, 1]
"""
    x = torch.randn(4, 6)
    expected = [x[:, 2:4], x.topk(2).values, x.mean(1, keepdim=True)]
    b, values, mean = interpret(text, [x])
    equal([b, values], expected[:2])
    torch.testing.assert_close(mean, expected[2])


def test_in_place_writes_keep_their_meaning_and_leave_the_callers_input_alone():
    text = """graph g(%x) -> (%y, %x)
  input x: float32[B, 4]
  node view = aten::select.int(%x, 1, 0) -> %v
    result v: float32[B] shares %x
  node add_ = aten::add_.Tensor(%v, 1) -> %w writes %v
    result w: float32[B] shares %x
  node mul = aten::mul.Tensor(%x, 2) -> %y
    result y: float32[B, 4]
"""
    x = torch.ones(2, 4)
    y, written = interpret(text, [x])
    # Column 0 becomes 2 before it is doubled.
    equal([y], [torch.tensor([[4.0, 2, 2, 2], [4, 2, 2, 2]])])
    equal([written, x], [torch.tensor([[2.0, 1, 1, 1], [2, 1, 1, 1]]), torch.ones(2, 4)])


BATCH_NORM = """graph g(%x) -> (%y)
  input x: float32[B, 3] apart(0)
  parameter weight: float32[3] grad
  buffer running_mean: float32[3]
  buffer running_var: float32[3]
  buffer count: int64[]
  node add_ = aten::add_.Tensor(%count, 1) -> %counted writes %count
    result counted: int64[] shares %count
  node batch_norm = aten::batch_norm(%x, %weight, none, STATE) -> %y writes WRITTEN
    result y: float32[B, 3] grad
"""
BATCH_NORM = BATCH_NORM.replace("STATE", "WRITTEN, true, 0.1, 1e-05, true").replace(
    "WRITTEN", "%running_mean, %running_var"
)


def batch_norm_state():
    return [torch.ones(3, requires_grad=True), torch.zeros(3), torch.ones(3), torch.tensor(0)]


def test_buffers_are_updated_in_place():
    state, x = batch_norm_state(), torch.randn(6, 3)
    (y,) = interpret(BATCH_NORM, [x], state)
    twin = torch.nn.BatchNorm1d(3)
    equal([y], [twin(x)])
    equal(state[1:], [twin.running_mean, twin.running_var, twin.num_batches_tracked])


def test_a_replica_without_rows_only_counts_the_batch():
    state = batch_norm_state()
    interpreter = _C.runtime.Interpreter(_C.ir.parse(BATCH_NORM), [])
    interpreter.run_row_free_effects(state)
    equal(state[1:], [torch.zeros(3), torch.ones(3), torch.tensor(1)])


def test_row_free_effects_run_what_they_need_and_no_more():
    # The step is 2 * scale, written through a view; the node on the batch does not run.
    text = """graph g(%x) -> (%y)
  input x: float32[B, 3] apart(0)
  buffer steps: float32[2]
  parameter scale: float32[] grad
  node double = aten::mul.Tensor(%scale, 2) -> %step
    result step: float32[] grad
  node first = aten::select.int(%steps, 0, 0) -> %f
    result f: float32[] shares %steps
  node add_ = aten::add_.Tensor(%f, %step) -> none writes %f no_grad
  node bad = aten::view(%x, [7, 7]) -> %y
    result y: float32[B, 3] shares %x
"""
    steps = torch.zeros(2)
    interpreter = _C.runtime.Interpreter(_C.ir.parse(text), [])
    interpreter.run_row_free_effects([steps, torch.tensor(1.5, requires_grad=True)])
    equal([steps], [torch.tensor([3.0, 0.0])])


NO_GRAD = """graph g(%x) -> (%y, %z)
  input x: float32[B]
  parameter w: float32[] grad
  node mul = aten::mul.Tensor(%x, %w) -> %z no_grad
    result z: float32[B]
  node add = aten::mul.Tensor(%z, %w) -> %y
    result y: float32[B] grad
"""


def test_grad_mode_is_the_nodes_own():
    w = torch.tensor(3.0, requires_grad=True)
    y, z = interpret(NO_GRAD, [torch.tensor([2.0])], [w])
    assert not z.requires_grad
    y.sum().backward()
    assert w.grad.item() == 6.0  # of z * w with z = 6 held fixed; 12 if z had a gradient
    assert torch.is_grad_enabled()


def test_under_no_grad_no_node_turns_gradients_on():
    w = torch.tensor(3.0, requires_grad=True)
    with torch.no_grad():
        y, _ = interpret(NO_GRAD, [torch.tensor([2.0])], [w])
        assert not torch.is_grad_enabled()
    assert not y.requires_grad


def test_autocast_of_the_caller_is_off_inside_and_kept_outside():
    x, weight, bias = torch.randn(2, 4), torch.randn(8, 4), torch.randn(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, h = interpret(PERCEPTRON, [x], [weight, bias])
        assert torch.is_autocast_enabled("cpu")
        assert functional.linear(x, weight).dtype == torch.bfloat16
    assert h.dtype == torch.float32


def test_scripted_functions_keep_their_control_flow():
    @torch.jit.script
    def repeat(x, times: int, scale: float = 2.0):
        for _ in range(times):
            if bool(x.sum() < 100):
                x = x * scale
        return x, x + 1

    text = """graph g(%x) -> (%b, %a)
  input x: float32[B]
  node repeat = repeat(%x, B) -> %a, %b scripted #0
    result a: float32[B]
    result b: float32[B]
"""
    for start in (1.0, 60.0):  # 3 rows: 3 doublings of [1,1,1]; [60,60,60] has a sum over 100
        x = torch.full((3,), start)
        a, b = repeat(x, 3)
        equal(interpret(text, [x], objects=[repeat]), [b, a])
        assert a[0] == (8 if start == 1.0 else 60)


class ClampedBackward(torch.autograd.Function):
    """Its backward is not what autograd would derive."""

    @staticmethod
    def forward(ctx, x):
        return x * 10

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(max=0.25)


def test_python_functions_keep_their_own_backward():
    text = """graph g(%x) -> (%y)
  input x: float32[B] grad
  node own = ClampedBackward(%x) -> %y python #0
    result y: float32[B] grad
"""
    x = torch.ones(2, requires_grad=True)
    (y,) = interpret(text, [x], objects=[ClampedBackward.apply])
    y.sum().backward()
    equal([y.detach(), x.grad], [torch.full((2,), 10.0), torch.full((2,), 0.25)])


def test_constants_come_from_the_objects_and_survive_a_write():
    text = """graph g(%x) -> (%y)
  input x: float32[B]
  constant c: float32[] #1
  node add_ = aten::add_.Tensor(%c, 1) -> %d writes %c
    result d: float32[] shares %c
  node mul = aten::mul.Tensor(%x, %d) -> %y
    result y: float32[B]
"""
    constant = torch.tensor(4.0)
    interpreter = _C.runtime.Interpreter(_C.ir.parse(text), [None, constant])
    for _ in range(2):  # 4 + 1 both times
        equal(interpreter.run([torch.ones(2)], [], 2), [torch.full((2,), 5.0)])
    assert constant.item() == 4


def test_values_are_freed_at_their_last_use():
    lines = ["graph chain(%x) -> (%v9)", "  input x: float32[B, 1024]"]
    for i in range(10):
        operand = "%x" if i == 0 else f"%v{i - 1}"
        lines.append(f"  node exp{i} = aten::neg({operand}) -> %v{i}")
        lines.append(f"    result v{i}: float32[B, 1024]")
    x = torch.randn(256, 1024)  # 1 MiB
    with torch.no_grad(), _C.runtime.MemoryRecorder() as memory:
        interpret("\n".join(lines) + "\n", [x])
    # Operand and result of one node; all ten would be 10 MiB.
    assert memory.peak_bytes == 2 * x.nbytes


def test_an_interpreter_holds_no_tensor_after_a_run_that_failed():
    text = """graph g(%x) -> (%y)
  input x: float32[B, 1024]
  node neg = aten::neg(%x) -> %n
    result n: float32[B, 1024]
  node view = aten::view(%n, [7]) -> %y
    result y: float32[7] shares %n
"""
    interpreter = _C.runtime.Interpreter(_C.ir.parse(text), [])
    x = torch.randn(64, 1024)
    with _C.runtime.MemoryRecorder() as memory, pytest.raises(RaNNCError):
        interpreter.run([x], [], 64)
    assert memory.peak_bytes == x.nbytes
    assert memory.current_bytes == 0


def test_an_error_of_an_operator_names_node_module_and_line():
    text = """graph g(%x) -> (%y)
  input x: float32[B, 4]
  node net.view_3 = aten::view(%x, [7]) -> %y in net at "model.py":12
    result y: float32[7] shares %x
"""
    with pytest.raises(RaNNCError) as raised:
        interpret(text, [torch.randn(2, 4)])
    assert str(raised.value) == (
        "node 'net.view_3' (aten::view in module 'net', model.py:12) failed: "
        "shape '[7]' is invalid for input of size 8"
    )


def test_an_error_of_a_python_function_names_the_node():
    def refuse(x):
        raise ValueError("not today")

    text = """graph g(%x) -> (%y)
  input x: float32[B]
  node own = refuse(%x) -> %y python #0 in head
    result y: float32[B]
"""
    with pytest.raises(
        RaNNCError, match=r"'own' \(refuse in module 'head'\).*ValueError: not today"
    ):
        interpret(text, [torch.ones(1)], objects=[refuse])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("aten::no_such_op(%x)", r"no operator 'aten::no_such_op' is registered"),
        ("aten::narrow(%x, 0, 0.5, 1)", r"argument 2 'start'.*wants .*int.* gives a float"),
        ("aten::narrow(%x, 0)", r"argument 2 'start': it is missing and has no default"),
        ("aten::neg(%x, 1)", r"has 2 arguments, but the operator takes 1"),
        ("aten::neg(none)", r"argument 0 'self'.*wants Tensor but the graph gives None"),
        (
            "aten::dropout(%x, %x, true)",
            r"argument 1 'p'.*wants float but the graph gives a tensor",
        ),
    ],
)
def test_a_node_that_does_not_fit_its_schema_is_refused_with_its_place(call, message):
    text = f"""graph g(%x) -> (%y)
  input x: float32[B]
  node bad = {call} -> %y in head at "model.py":3
    result y: float32[B]
"""
    with pytest.raises(TraceError, match=r"node 'bad'.*module 'head', model.py:3.*" + message):
        _C.runtime.Interpreter(_C.ir.parse(text), [])


def test_a_function_that_changes_its_number_of_results_is_an_error():
    text = """graph g(%x) -> (%y)
  input x: float32[B]
  node own = f(%x) -> %y python #0
    result y: float32[B]
"""
    with pytest.raises(RaNNCError, match="returned 2 tensors, but returned 1 when"):
        interpret(text, [torch.ones(1)], objects=[lambda x: (x, x)])


def test_other_python_threads_run_meanwhile():
    # The node waits for a thread that needs the GIL: it would never end if run() kept it.
    ready = threading.Event()

    def wait(x):
        threading.Thread(target=ready.set).start()
        assert ready.wait(20)
        return x

    text = """graph g(%x) -> (%y)
  input x: float32[B]
  node own = wait(%x) -> %y python #0
    result y: float32[B]
"""
    equal(interpret(text, [torch.ones(1)], objects=[wait]), [torch.ones(1)])
