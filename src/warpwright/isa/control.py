"""Control flow, exchange within a warp and miscellany (PTX ISA 9.1 sections 9.7.12, 9.7.13.9 to 14, 9.7.17, 9.7.19)."""

from __future__ import annotations

from warpwright.isa.notation import forms

__all__ = ["FORMS"]

_LANES = forms(
    "each active lane",
    "return",
    """
bra  9.7.12.3  Branch to a label. [jumps]
    bra{.uni}                                       label:label
brx.idx  9.7.12.4  Branch to a label chosen from a list. [jumps]
    brx.idx{.uni}                                   a:u32, list:label
call  9.7.12.5  Call a function.
    call{.uni}                                      results, function, arguments
ret  9.7.12.6  Return from a function, or end the thread. [jumps]
    ret{.uni}
exit  9.7.12.7  End the thread. [jumps]
    exit
activemask  9.7.13.11  Mask of the lanes that execute this instruction together.
    activemask.type=b32                             d
nanosleep  9.7.19.2  Suspend the thread for about a time in nanoseconds.
    nanosleep.type=u32                              a
pmevent  9.7.19.3  Trigger performance monitor events.
    pmevent.mask                                    #a
    pmevent                                         #a=0..15
trap  9.7.19.4  Abort the grid with an error. [jumps]
    trap
brkpt  9.7.19.1  Stop for the debugger. [jumps]
    brkpt
stacksave  9.7.17.1  Value of the stack pointer.
    stacksave.type=u32|u64                          d
stackrestore  9.7.17.2  Set the stack pointer.
    stackrestore.type=u32|u64                       a
alloca  9.7.17.3  Allocate on the stack.
    alloca.type=u32|u64                             d, a{, #align}
griddepcontrol.wait  9.7.13.13  Wait for the grids this one depends on and for their memory. [grid blocks]
    griddepcontrol.wait
griddepcontrol.launch_dependents  9.7.13.13  Hint: grids that depend on this one may start. [grid]
    griddepcontrol.launch_dependents
""",
)

_WARP = forms(
    "the lanes of the mask, together",
    "return",
    """
shfl.sync  9.7.9.6  Value of another lane's register. [warp blocks]
    shfl.sync.mode=up|down|bfly|idx.type=b32        d{|p:pred}, a, b:b32, c:b32, mask:u32
vote.sync  9.7.13.9  Reduction of a predicate over lanes. [warp blocks]
    vote.sync.mode=all|any|uni.type=pred            d, a:pred, mask:u32
    vote.sync.mode=ballot.type=b32                  d, a:pred, mask:u32
match.any.sync  9.7.13.10  Mask of the lanes with the same value. [warp blocks]
    match.any.sync.type=B3264                       d:u32, a, mask:u32
match.all.sync  9.7.13.10  Mask of all lanes if their values are equal, else 0. [warp blocks]
    match.all.sync.type=B3264                       d:u32{|p:pred}, a, mask:u32
redux.sync  9.7.13.12  Reduction of a value over lanes. [warp blocks]
    redux.sync.op=add|min|max.type=INT32            d, a, mask:u32
    redux.sync.op=and|or|xor.type=b32               d, a, mask:u32
    redux.sync.op=min|max{.abs}{.NaN}.type=f32      d, a, mask:u32       @ sm_100f
elect.sync  9.7.13.14  Choose one lane of the mask: its predicate is true. [warp blocks]
    elect.sync                                      d:b32|p:pred, mask:u32
bar.warp.sync  9.7.13.2  Wait for the lanes of the mask; orders memory among them. [warp blocks]
    bar.warp.sync                                   mask:u32
""",
)

_WARPGROUP = forms(
    "all warps of a warpgroup, converged",
    "return",
    """
setmaxnreg  9.7.19.5  Change the number of registers a thread of the warp owns. [service blocks]
    setmaxnreg.action=inc|dec.sync.aligned.type=u32 #count=8n               @ sm_90a sm_100f sm_120f
""",
)

FORMS = _LANES + _WARP + _WARPGROUP
