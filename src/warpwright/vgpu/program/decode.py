"""Decodes a parsed module into a `Program`: scopes resolved, device functions inlined, variables placed, blocks cut.

Calls are inlined, so recursion is refused; a call through a pointer is a choice among the functions whose address the
module takes. ``vprintf``, ``__assertfail``, ``malloc`` and ``free`` are services of the machine. Kernel parameters,
locals and the ``.param`` variables of calls become byte offsets; module variables, and after them the heap of a module
that declares malloc, get virtual addresses from GLOBAL_BASE on, in order of declaration.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from warpwright import isa
from warpwright.errors import UnsupportedInstruction, UsageError
from warpwright.ptx import nodes
from warpwright.ptx.special_registers import special_bits
from warpwright.targets.archs import ARCHS, Arch
from warpwright.vgpu.program import services
from warpwright.vgpu.program.initialisers import constant_bits, flatten_initialiser, names_in, names_of, select_byte
from warpwright.vgpu.program.lines import Line, Lines
from warpwright.vgpu.program.memory_map import GLOBAL_BASE, HEAP, HEAP_BYTES, RESERVED_SHARED
from warpwright.vgpu.program.program import (
    Block,
    Inst,
    Operand,
    Param,
    Program,
    Register,
    Symbol,
    Variable,
    registers_of,
    vector_of,
)
from warpwright.vgpu.program.scope import Scope, align_of, bits_of, round_up, size_of

__all__ = ["decode"]

# Special registers without a value here: of drivers, of performance counters, of memory that ptxas reserves.
_NO_VALUE = ("%envreg", "%pm", "%reserved_smem", "%current_graph_exec")

# CUDA's cooperative_groups reads the address of the grid's workspace here: a size, and a barrier that starts at 0.
_GRID_ADDRESS = {"%envreg1": 32, "%envreg2": 0}
_GRID_WORKSPACE = bytes(8)
_MOST_BYTES = 1 << 32  # of a variable in global or constant memory

_WAITS = ("copy", "lane-copy", "wgmma", "mbarrier")  # queues whose instructions let lanes wait


def _opens_block(form: isa.Form) -> bool:
    """Whether an instruction opens a block: the dispatcher re-enters there, for lanes that wait, gather or retry."""
    return form.queued or form.collective or form.traits.blocks or form.traits.queue not in ("", "lane-copy")


def _closes_block(form: isa.Form) -> bool:
    """Whether an instruction closes its block: a lane may resume later than its neighbours, or elsewhere."""
    traits = form.traits
    return traits.jumps or traits.queue in ("barrier", "service") or (traits.blocks and traits.queue in _WAITS)


_UNPLACED = -(1 << 40)  # address of dynamic shared memory until it is placed; offsets are added to it


def decode(module: nodes.Module, entry: str) -> Program:
    """Decode the kernel ``entry`` of ``module``. Raises UsageError if there is no such entry, UnsupportedInstruction
    for recursion."""
    return _Decoder(module).program(entry)


def static_shared(module: nodes.Module, entry: str) -> int:
    """Returns the bytes of a kernel's static shared memory, without the system's reserve."""
    return decode(module, entry).shared_bytes - RESERVED_SHARED


def module_variables(module: nodes.Module) -> list[Variable]:
    """Returns the variables of a module in global and constant memory, with their addresses and initial values."""
    return _Decoder(module).variables


class _Decoder:
    """State of one decoding: the variables placed and the instructions emitted so far."""

    def __init__(self, module: nodes.Module) -> None:
        self.module = module
        self.functions = {item.name: item for item in module.items if isinstance(item, nodes.Function) and item.body}
        self.lines = Lines(module)
        self.top = Scope(None, "")
        self.shared: dict[str, nodes.Variable] = {}
        self.dynamic: list[str] = []
        self.shared_bytes = RESERVED_SHARED
        self.local_bytes = 0
        self.variables: list[Variable] = []
        self.registers: dict[str, Register] = {}
        self.flat: list[Inst | str] = []
        self.locs: tuple[Line, ...] = ()
        self.callers: tuple[Line, ...] = ()
        self.calls = 0
        self.stack: list[str] = []
        self._place_module_variables()

    def _place_module_variables(self) -> None:
        address = self.module.variables or GLOBAL_BASE
        placed = []
        for item in (i for i in self.module.items if isinstance(i, nodes.Variable)):
            if item.space == "shared":
                self.shared[item.name] = item
                continue
            address = round_up(address, max(256, align_of(item)))
            self.top.names[item.name] = Symbol(item.space, item.name, address)
            placed.append((item, address))
            address += max(1, size_of(item))
        self.variables = [Variable(item.name, at, self._image(item)) for item, at in placed]
        if any(i.name == "malloc" and i.body is None for i in self.module.items if isinstance(i, nodes.Function)):
            address = round_up(address, 256)
            self.variables.append(Variable(HEAP, address, bytes(self.module.heap or HEAP_BYTES)))
            address += len(self.variables[-1].data)
        workspace = GLOBAL_BASE if self.module.variables else round_up(address, 256)
        self.grid_workspace = Variable("%grid_workspace", workspace, _GRID_WORKSPACE)

    def _image(self, item: nodes.Variable) -> bytes:
        if size_of(item) > _MOST_BYTES:
            raise UsageError(
                f"PTX line {item.line}: {item.name} has {size_of(item):,} bytes; expected at most {_MOST_BYTES:,} "
                "bytes in a variable: allocate the array and pass it as an argument"
            )
        step = max(1, bits_of(item.type) // 8)
        values = flatten_initialiser(item.init, item.dims)
        words: dict[nodes.Operand | None, bytes] = {None: bytes(step)}
        words |= {each: self._word(item, each).to_bytes(step, "little") for each in dict.fromkeys(values) if each}
        return b"".join(map(words.__getitem__, values)).ljust(size_of(item), b"\0")

    def _word(self, item: nodes.Variable, value: nodes.Operand) -> int:
        bits = bits_of(item.type)
        if isinstance(value, nodes.Imm):
            return constant_bits(value, item.type) & ((1 << bits) - 1)
        name = value.name if isinstance(value, nodes.Reg | nodes.Symbol) else ""
        found = self._function_address(name) or self.top.find(name)
        if not isinstance(found, Symbol):
            raise UsageError(
                f"PTX line {item.line}: the initialiser of {item.name} names {name!r}, which has no address."
            )
        word = found.value + (value.offset if isinstance(value, nodes.Symbol) else 0)
        if isinstance(value, nodes.Symbol) and value.mask:
            word = select_byte(word, int(value.mask, 0))
        return word & ((1 << bits) - 1)

    def program(self, entry: str) -> Program:
        function = self.functions.get(entry)
        if function is None or function.kind != "entry":
            known = ", ".join(f.name for f in self.functions.values() if f.kind == "entry") or "none"
            raise UsageError(f"given entry {entry!r}; expected one of the module's entries: {known}.")
        scope = Scope(self.top, "")
        params = self._params(function, scope)
        self._walk(function.body, scope, "")
        self._emit("exit", (), None, 0)
        dims = {d.name: _dims(d.text) for d in function.directives if d.text and d.text[0].isdecimal()}
        flags = {d.name for d in function.directives}
        blocks = self._blocks()
        dynamic = self._place_dynamic()
        return Program(
            entry, self.module.target[0], params, blocks, self.registers, tuple(self.variables), self.shared_bytes,
            dynamic, round_up(self.local_bytes, 16), dims.get(".reqntid"), dims.get(".maxntid"),
            dims.get(".reqnctapercluster"), ".explicitcluster" in flags,
            self._thread_registers({name: x * y * z for name, (x, y, z) in dims.items()}),
            self.grid_workspace in self.variables,
        )  # fmt: skip

    def _thread_registers(self, numbers: dict[str, int]) -> int:
        """Registers of a thread at launch, as ptxas 13.0 sets them for a kernel with setmaxnreg: the limit, or the
        largest count of a setmaxnreg.inc if that is lower. 0 if undefined."""
        limit = _register_limit(numbers, ARCHS.get(self.module.target[0]))
        changes = [inst for inst in self.flat if isinstance(inst, Inst) and inst.name == "setmaxnreg"]
        return min(limit, max((inst.number("count") for inst in changes if inst["action"] == "inc"), default=limit))

    def _params(self, function: nodes.Function, scope: Scope) -> tuple[Param, ...]:
        params, offset = [], 0
        for item in function.params:
            offset = round_up(offset, align_of(item))
            params.append(Param(item.name, item.type, size_of(item), align_of(item), offset))
            scope.names[item.name] = Symbol("param", item.name, offset)
            offset += size_of(item)
        return tuple(params)

    def _walk(self, block: nodes.Block | None, scope: Scope, ret: str) -> None:
        """Emit a body. ``ret`` branches to the label ``ret``; in the entry the label is "" and ``ret`` ends the
        thread."""
        assert block is not None
        self._declare(block, scope)
        for item in block.items:
            if isinstance(item, nodes.Instruction):
                self._instruction(item, scope, ret)
            elif isinstance(item, nodes.Loc):
                self.locs = self.lines.at(item) + self.callers
            elif isinstance(item, nodes.Label):
                self.flat.append(item.name + scope.suffix)
            elif isinstance(item, nodes.Block):
                self.calls += 1
                self._walk(item, Scope(scope, f"{scope.suffix}@{self.calls}"), ret)

    def _declare(self, block: nodes.Block, scope: Scope) -> None:
        label = ""
        for item in block.items:
            if isinstance(item, nodes.RegDecl):
                self._declare_registers(item, scope)
            elif isinstance(item, nodes.Variable):
                self._declare_variable(item, scope)
            elif isinstance(item, nodes.Label):
                label = item.name
                scope.names[label] = Symbol("label", label + scope.suffix, -1)
            elif isinstance(item, nodes.Directive) and item.name == ".branchtargets":
                scope.targets[label] = tuple(word.strip() for word in item.text.split(","))

    def _declare_registers(self, item: nodes.RegDecl, scope: Scope) -> None:
        for name in item.names:
            if item.count is not None:
                scope.ranges.append((name, item))
            else:
                scope.declare(name, item)

    def _declare_variable(self, item: nodes.Variable, scope: Scope) -> None:
        if item.space == "shared":
            scope.names[item.name] = self._place_shared(item, item.name + scope.suffix)
        elif item.space == "reg":
            scope.declare(item.name, item)
        elif item.name not in scope.names:
            self.local_bytes = round_up(self.local_bytes, align_of(item))
            scope.names[item.name] = Symbol("local", item.name, self.local_bytes)
            self.local_bytes += size_of(item)

    def _place_shared(self, item: nodes.Variable, name: str) -> Symbol:
        if item.linkage == ".extern" or 0 in item.dims:
            self.dynamic.append(name)
            self.shared[name] = item
            return Symbol("shared", name, _UNPLACED)
        self.shared_bytes = round_up(self.shared_bytes, align_of(item))
        symbol = Symbol("shared", name, self.shared_bytes)
        self.shared_bytes += size_of(item)
        return symbol

    def _place_dynamic(self) -> int:
        """Place dynamic shared memory after the static variables; every extern array names its start."""
        align = max([16, *(align_of(self.shared[name]) for name in self.dynamic)])
        start = round_up(self.shared_bytes, align)
        for inst in self.flat:
            if isinstance(inst, Inst):
                inst._operands = tuple(_place_symbol(operand, start) for operand in inst._operands)
        return start

    def _function_address(self, name: str) -> Symbol | None:
        """The address of a function: code can store it, compare it and call through it."""
        if name not in self.functions:
            return None
        return Symbol("global", name, 16 * (1 + list(self.functions).index(name)))

    def _find(self, name: str, scope: Scope, line: int) -> Operand:
        found = scope.find(name)
        if found is None and name in self.shared:
            found = self.top.names[name] = self._place_shared(self.shared[name], name)
        if found is None:
            found = self._function_address(name)
        if found is None and special_bits(name):
            if name in _GRID_ADDRESS:
                return self._grid_address(name)
            if name.startswith(_NO_VALUE):
                raise UsageError(
                    f"PTX line {line}: {name} has no value on a virtual GPU; leave it out, or pass the value."
                )
            found = Register(name, special_bits(name), special=True)
        if found is None:
            found = scope.element(name)
        if found is None:
            raise UsageError(f"PTX line {line}: {name!r} is used but not declared; declare it, or correct its name.")
        return found

    def _grid_address(self, name: str) -> nodes.Imm:
        """A half of the address of the memory by which the CTAs of a cooperative launch synchronise."""
        if self.grid_workspace not in self.variables:
            self.variables.append(self.grid_workspace)
        half = self.grid_workspace.address >> _GRID_ADDRESS[name] & 0xFFFF_FFFF
        return nodes.Imm(str(half), half)

    def _resolve(self, operand: nodes.Operand, scope: Scope, line: int) -> Operand:
        if isinstance(operand, nodes.Reg):
            if operand.name == "_":
                return operand
            found = self._find(operand.name, scope, line)
            for register in registers_of(found):
                self.registers.setdefault(register.name, register)
            return replace(found, negated=True) if operand.negated and isinstance(found, Register) else found
        if isinstance(operand, nodes.Vector):
            return vector_of(self._resolve(i, scope, line) for i in operand.items)
        if isinstance(operand, nodes.Pair):
            return nodes.Pair(self._resolve(operand.first, scope, line), self._resolve(operand.second, scope, line))  # type: ignore[arg-type]
        if isinstance(operand, nodes.Address):
            base = self._resolve(operand.base, scope, line)
            extra = tuple(self._resolve(i, scope, line) for i in operand.extra)
            return nodes.Address(base, operand.offset, extra)  # type: ignore[arg-type]
        if isinstance(operand, nodes.Symbol):
            found = self._find(operand.name, scope, line)
            return replace(found, value=found.value + operand.offset) if isinstance(found, Symbol) else found
        return operand

    def _instruction(self, item: nodes.Instruction, scope: Scope, ret: str) -> None:
        guard = self._guard(item, scope)
        if item.opcode.startswith("call"):
            return self._call(item, scope, guard)
        if item.opcode.startswith("ret") and ret:
            return self._emit("bra.uni" if guard is None else "bra", (Symbol("label", ret, -1),), guard, item.line)
        if item.opcode.startswith("brx"):
            index, targets = self._resolve(item.operands[0], scope, item.line), self._branch_list(item, scope)
            return self._emit(item.opcode, (index, targets), guard, item.line)
        operands = tuple(self._resolve(o, scope, item.line) for o in item.operands)
        self._emit(item.opcode, operands, guard, item.line)

    def _guard(self, item: nodes.Instruction, scope: Scope) -> Register | None:
        if item.guard is None:
            return None
        found = self._resolve(nodes.Reg(item.guard.register, item.guard.negated), scope, item.line)
        assert isinstance(found, Register)
        return found

    def _branch_list(self, item: nodes.Instruction, scope: Scope) -> nodes.Vector:
        operand = item.operands[1]
        names = scope.branch_targets(operand.name) if isinstance(operand, nodes.Reg) else None
        if names is None:
            raise UsageError(f"PTX line {item.line}: brx.idx needs the label of a .branchtargets list.")
        return vector_of(self._find(name, scope, item.line) for name in names)

    def _call(self, item: nodes.Instruction, scope: Scope, guard: Register | None) -> None:
        results, name, arguments = _call_parts(item)
        function = self.functions.get(name)
        values = tuple(self._resolve(a, scope, item.line) for a in arguments)
        if isinstance(scope.find(name), Register):
            return self._call_pointer(item, scope, guard, [self._resolve(r, scope, item.line) for r in results], values)
        if function is None and f"call.{name}" in services.SERVICES:
            targets = tuple(self._resolve(r, scope, item.line) for r in results)
            return self._emit(f"call.{name}", (*targets, *values), guard, item.line)
        if function is None:
            raise UnsupportedInstruction(
                f"PTX line {item.line}: `call {name}`: expected a function of the module, vprintf, malloc or free."
            )
        if name in self.stack:
            raise UnsupportedInstruction(
                f"PTX line {item.line}: `call {name}`: recursion is not supported; rewrite it as a loop."
            )
        self._inline(function, [self._resolve(r, scope, item.line) for r in results], list(values), guard, item.line)

    def _call_pointer(
        self,
        item: nodes.Instruction,
        scope: Scope,
        guard: Register | None,
        results: list[Operand],
        values: tuple[Operand, ...],
    ) -> None:
        """Compare the pointer with the address of each function that it may be, and inline all of them."""
        called = [self.functions[name] for name in self._pointed_to if name not in self.stack]
        called = [f for f in called if (len(f.returns), len(f.params)) == (len(results), len(values))]
        if not called:
            raise UnsupportedInstruction(
                f"PTX line {item.line}: `{item.opcode}` through a pointer: expected the address of a function with "
                "these parameters, but the module takes none."
            )
        pointer = self._resolve(nodes.Reg(_call_parts(item)[1]), scope, item.line)
        self.calls += 1
        label, chosen = f"pointer$return{self.calls}", Register(f"%chosen{self.calls}", 1)
        self.registers[chosen.name] = chosen
        if guard is not None:
            self._emit("bra", (Symbol("label", label, -1),), replace(guard, negated=not guard.negated), item.line)
        for number, function in enumerate(called):
            following, address = f"{label}${number}", self._function_address(function.name)
            assert address is not None
            self._emit("setp.ne.u64", (chosen, pointer, nodes.Imm(str(address.value), address.value)), None, item.line)
            self._emit("bra", (Symbol("label", following, -1),), chosen, item.line)
            self._inline(function, results, list(values), None, item.line)
            self._emit("bra.uni", (Symbol("label", label, -1),), None, item.line)
            self.flat.append(following)
        self._emit("trap", (), None, item.line)
        self.flat.append(label)

    @cached_property
    def _pointed_to(self) -> list[str]:
        """The functions whose addresses the module takes, in initialisers or in code."""
        bodies = [item.body for item in self.functions.values()]
        inits = [item.init for item in self.module.items if isinstance(item, nodes.Variable)]
        named = {name for operand in inits for name in names_of(operand)}
        named |= {name for body in bodies for name in names_in(body)}
        return [name for name in self.functions if name in named]

    def _inline(
        self, function: nodes.Function, results: list[Operand], values: list[Operand], guard: Register | None, line: int
    ) -> None:
        self.calls += 1
        after = f"{function.name}$return{self.calls}"
        scope = Scope(self.top, f"@{self.calls}")
        if guard is not None:
            self._emit("bra", (Symbol("label", after, -1),), replace(guard, negated=not guard.negated), line)
        for formal, actual in zip(function.returns, results, strict=True):
            scope.names[formal.name] = actual
        for formal, actual in zip(function.params, values, strict=True):
            self._bind(formal, actual, scope, line)
        caller = self.locs, self.callers
        self.callers = self.locs
        self.stack.append(function.name)
        self._walk(function.body, scope, after)
        self.stack.pop()
        self.locs, self.callers = caller
        self.flat.append(after)

    def _bind(self, formal: nodes.Variable, actual: Operand, scope: Scope, line: int) -> None:
        """Bind a ``.param`` formal to the caller's variable, or move the value into the register of a ``.reg``
        formal."""
        if isinstance(actual, Symbol) and formal.space != "reg":
            scope.names[formal.name] = actual
            return
        variable = scope.declare(formal.name, formal)
        self.registers |= {register.name: register for register in registers_of(variable)}
        vector = f".v{formal.vector}" if formal.vector > 1 else ""
        self._emit(f"mov{vector}.b{bits_of(formal.type)}", (variable, actual), None, line)

    def _emit(self, opcode: str, operands: tuple[Operand, ...], guard: Register | None, line: int) -> None:
        match = services.match(opcode, len(operands))
        self.flat.append(Inst(0, opcode, match, operands, guard, line, self.locs))

    def _blocks(self) -> list[Block]:
        blocks = [Block(0, "entry")]
        labels: dict[str, int] = {}

        def cut(name: str = "") -> None:
            if blocks[-1].insts or name:
                blocks.append(Block(len(blocks), name or blocks[-1].name))

        number = 0
        for item in self.flat:
            if isinstance(item, str):
                cut(item)
                labels[item] = blocks[-1].index
                continue
            if _opens_block(item.form):
                cut()
            item.index, number = number, number + 1
            blocks[-1].insts.append(item)
            if _closes_block(item.form):
                cut()
        for item in self.flat:
            if isinstance(item, Inst):
                item._operands = tuple(_resolve_label(operand, labels) for operand in item._operands)
        return blocks


def _register_limit(numbers: dict[str, int], arch: Arch | None) -> int:
    """Registers that the directives of a kernel leave to a thread, as ptxas 13.0 counts them; 0 if undefined.

    Each of an SM's four schedulers has a quarter of the registers: ptxas divides by the warps of the busiest one.
    """
    if ".maxnreg" in numbers:
        return round_up(numbers[".maxnreg"], 8)
    threads = numbers.get(".reqntid") or numbers.get(".maxntid")
    if arch is None or not threads or ".minnctapersm" not in numbers:
        return 0
    warps = round_up(-(-threads // arch.warp_size) * numbers[".minnctapersm"], 4)
    share = arch.registers_per_sm // (arch.warp_size * warps)
    return min(share // 8 * 8, round_up(arch.max_registers_per_thread, 8))


def _dims(text: str) -> tuple[int, int, int]:
    numbers = [int(word, 0) for word in text.split(",")]
    x, y, z = [*numbers, 1, 1][:3]
    return x, y, z


def _call_parts(item: nodes.Instruction) -> tuple[tuple[nodes.Operand, ...], str, tuple[nodes.Operand, ...]]:
    operands = list(item.operands)
    results = operands.pop(0).items if isinstance(operands[0], nodes.Vector) else ()  # type: ignore[union-attr]
    name = operands.pop(0)
    arguments = operands.pop(0).items if operands and isinstance(operands[0], nodes.Vector) else ()  # type: ignore[union-attr]
    assert isinstance(name, nodes.Reg)
    return results, name.name, arguments


def _resolve_label(operand: Operand, labels: dict[str, int]) -> Operand:
    """Replace labels by block indices."""
    if isinstance(operand, Symbol) and operand.space == "label":
        return replace(operand, value=labels[operand.name])
    if isinstance(operand, nodes.Vector):
        return vector_of(_resolve_label(i, labels) for i in operand.items)
    return operand


def _place_symbol(operand: Operand, dynamic: int) -> Operand:
    """Replace the placeholder address of extern shared arrays by the start of dynamic shared memory."""
    if isinstance(operand, Symbol) and operand.space == "shared" and operand.value < 0:
        return replace(operand, value=dynamic + operand.value - _UNPLACED)
    if isinstance(operand, nodes.Address):
        return replace(operand, base=_place_symbol(operand.base, dynamic))  # type: ignore[arg-type]
    if isinstance(operand, nodes.Vector):
        return vector_of(_place_symbol(i, dynamic) for i in operand.items)
    return operand
