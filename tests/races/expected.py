"""The expected findings when one synchronising instruction of a kernel is removed or changed.

``FORMULA`` has the expected rules of a removed instruction by opcode, ``CHANGED`` those of a changed instruction;
``REDUNDANT`` lists the exceptions, by kernel, role, opcode and change, with the reason.
"""

from __future__ import annotations

import re

from tests.races.edits import REMOVED, Edit

__all__ = ["CHANGED", "FORMULA", "REDUNDANT", "expected"]

FORMULA = {
    r"mbarrier\.init": "fault",
    r"fence\.mbarrier_init": "mbarrier-init",
    r"mbarrier\.try_wait": "race, tmem-freed, exit-early, mbarrier-lapped, fault, deadlock",
    r"mbarrier\.arrive|tcgen05\.commit": "deadlock",
    r"cp\.async\.bulk\.(commit|wait)": "race, exit-early, grid-race",
    r"wgmma\.fence": "wgmma-fence",
    r"wgmma\.(commit|wait)": "wgmma-registers, race",
    r"tcgen05\.fence": "tcgen05-fence",
    r"tcgen05\.wait::ld": "tmem-registers",
    r"tcgen05\.wait::st": "race",
    r"tcgen05\.(alloc|dealloc)": "fault",
    r"cp\.async\.mbarrier": "deadlock",
    r"fence\.proxy": "proxy-fence",
    r"bar\.warp": "race, proxy-fence, mbarrier-lapped",
    r"bar\.arrive": "deadlock",
    r"barrier\.cluster\.arrive": "fault, deadlock",
    r"bar": "race, tmem-freed, grid-race, mbarrier-init, mbarrier-lapped, exit-early, fault, barrier-count, deadlock",
    r"setmaxnreg\.dec": "deadlock",
    r"griddepcontrol\.wait": "grid-dependency",
}

# name of the change: rules, one of which finds it
LOST_SIGNAL = "deadlock, race, tmem-freed, fault, exit-early, mbarrier-lapped, uninitialised, tcgen05-fence"
CHANGED = {
    "one arrival more": "deadlock",
    "one arrival less": "fault, mbarrier-count",
    "twice the bytes": "deadlock, fault",
    "bytes too few": "deadlock, race, fault",
    "two arrivals": "fault, mbarrier-count, mbarrier-lapped",
    "arrives at once": "race",
    "a warp more": "deadlock, fault",
    "a warp less": "fault, race, deadlock",
    "relaxed": "race, tmem-freed, exit-early, tcgen05-fence",
    "a group more in flight": "race, exit-early, grid-race, wgmma-registers",
    "the other phase": LOST_SIGNAL,
    "the next barrier": LOST_SIGNAL,
    "bytes for the next barrier": LOST_SIGNAL,
    "no peer": LOST_SIGNAL,
    "data at the leader": LOST_SIGNAL,
}

LANE_ORDER = "the lanes synchronise after it in any case, or each lane fences and arrives, or nothing follows"
BEFORE_DEALLOC = "only dealloc follows, after wait::ld"
FRESH = "no operation was issued to tensor memory before"
BLOCKS = "a warp's first two blocks are free: no store has read them, or a wait for all stores has passed"
EXITS = "after a tile come wait_group and wait_group.read, of the next block or before the exit: one is enough"
TOGETHER = "the whole warp executes loads, stores and waits of tensor memory: the lane that arrives knows of them"
ALONE = "one CTA, and its own threads arrive before they exit"
OWN_BARRIER = "one CTA: the barrier is its own"
LAST_SLOT = "no load follows the last slot"
QUERIES = "the arrival for the keys also covers the earlier copies of the queries"
LATER = "the next slot becomes empty later than this one, and the last slot is not used again"
FIRST = "the first round of a fresh ring"
LANES = "the lanes synchronise again at an mbarrier"
DATA = "the address of data: the kernel reads other values, in order"
INIT = "fence.mbarrier_init is a release itself"
ONLY = "the warp's only block is free"
FOLLOWS = "a bar.sync of all warps that store follows"
OTHER = "the other slot becomes empty later than this one, and the next mbarrier in memory has long been full"
READ_BEFORE = "the warps have read their sums before bar.sync"
TRAP = "a trap follows, which no launch of all ranks reaches; the virtual GPU has performed the store in any case"
SAME_ORDER = "the cluster barriers after the last tile establish the same order"
ANEW = "the mbarriers have begun anew after the last tile, and nothing has arrived since"
SYNCED = "all warps have fenced and synchronised before"
REGISTERS = "the assembler may spill PTX's registers"
MMA = r"mma\.sync (v3|rows|helpers|two-ten) kernel"
Q_SLOTS = "O takes the slots of Q: no thread waits at empty barriers of O"
ITEMS = "before the loader writes there again, it waits for a Q that is released later"
CONVERGENT = "it orders nothing: it keeps the assembler from taking the loop for divergent"
HALVES = "the sums of the other half drain later"
WAVE = "the first wave has waited for the slots"
BOTH = "of two slots every other wait is for the later one, and covers both"
FENCE_BEFORE = "an earlier fence comes after all uses of these registers"
PART = "the loader has waited for Q: all reads of the part before are complete"
KEYS = "the next slot becomes empty later than this one, and the last slot never has keys"
OWN = "the thread waits for operations that it issued itself"
VALUES = "the loader waits for V first, which a commit after these MMAs releases"
MMA_WAIT = "the thread has waited for these MMAs"
NUMBERS = "it publishes a number, and the warps that wait for it use other columns"
NUMBER_READ = "it tells that a number is read, and the warps that wait for it use other columns"
TILE_FENCE = "the fence for the other tile comes after the reads of O"
NO_SCORES = "the wait is for the next scores, and none follow the last part"
OTHER_Q = "the next barrier is that of the last Q of the part, which becomes empty later"
FIRST_Q = "the loader waits for Q of the first tile first, which a commit after these MMAs releases"
K_FIRST = "the loader waits for K first, which a commit after the MMAs of Q releases"
STRIPS = "the group still in flight reads the other strip"
NEXT_PART = "the next mbarrier brings the next part, published after all warps that read the sum took this part"
ALL_READ = "the wait for the first strip has all stores of the part before"
AFTER_Q = "the loader has waited for Q, released after dO"
TILES = "dO comes after Q, which is released when all MMAs of its tile are complete"
GRADIENTS = "backward sm90( of 96| long| early| packed| modified| ordered| ascending)?"
EARLY = "backward sm90 (early|packed|modified)"
Q_RELEASE = "the loader has waited for Q, which is released when all warps have begun the work of this item"
PROMPT = "it is for ptxas, which may otherwise delay reads; the lanes share no memory there"
HINT = "the next launch begins later; its griddepcontrol.wait waits for the end of this one in any case (9.7.13.13)"
ONE_BLOCK = "the first tile has one block of keys, so the loader publishes the next item in any case"
K_BEHIND = "the loader has waited for the item or for V, whose slots become empty after this one of K"
KEPT = "the loader has waited for keys or values that the tensor cores read later"
NEXT = "the next iteration's first one orders the same"
IN_ORDER = "this thread has issued the MMAs that read the slot, and the tensor cores execute its MMAs in order"
UNUSED = "no thread uses this barrier of the ring"
AFTER_K = "the loader has waited for K, released after V"
REST = "the next barrier is that of the other half, at which the same warps arrive later"
IN_TIME = "it delays weights, which are registers by then; a wait for all groups follows"
EVEN = "the slots that blocks with a mask take in this run are even, and the barrier of the next slot completes later"
ONE_GROUP = "the next commit has both halves of QK, and a wait for all groups follows"
NO_FEWER = "the warpgroup had as many registers before; the instruction is for ptxas, which allocates by it"
FEW = r"few queries(, two launches| in pairs| paged)?"
SM90 = r"attention sm90( in turn| one Q| packed| modified| lists| fp8| parts| direct)?"
LATER_OR_SAME = (
    "the next slot becomes empty later than this one, or this one with the slot that the loader waited for before"
)
TURNED = "before the loader writes there again, it waits for keys that are released after a barrier of all these warps"
ONE_WAIT = "the next commit puts these wgmmas into its group, and one wait is for both"
READ_BEFORE_WGMMA = "all lanes read the slot before the wgmmas for whose group the warp has waited"
SCORED = "the warps of scores have waited for these rows before they stored the weights"
LAST_ITEM = "the item is the last one, and nothing is written to its slot"
LAST_STEP = "the last step releases no slot of dO, and a wait for all groups follows"
ZEROS = "the warp that stored the zeros has fenced them for the async proxy"
ZEROS_AND_ADDS = f"{ZEROS}, and TMA of the block before has added to them"
ADDS = "TMA added to the sums and reads them: both are in the async proxy"
NEXT_BOX = "the other lanes wait for the next box, which the elected lane loads after its wait"
ATTENTION = {
    r"backward sm90 (ordered|ascending) save fence\.proxy\.async\.global #0$": ZEROS_AND_ADDS,
    rf"{GRADIENTS} save fence\.proxy\.async\.global #0$": ZEROS,
    rf"{GRADIENTS} convert_ahead fence\.proxy\.async\.global #0$": ADDS,
    rf"{GRADIENTS} convert_ahead bar\.warp\.sync #1$": NEXT_BOX,
    r"attention sm90( in turn| packed| modified| lists)? init mbarrier\.init\S* #1[01]($|: one arrival more)": Q_SLOTS,
    r"attention sm90 sliding init mbarrier\.init\S* #1[01]($|: one arrival more)": Q_SLOTS,
    r"attention sm90 sliding load mbarrier\.try_wait\S* #[34578]: the next barrier": LATER_OR_SAME,
    r"attention sm90 sliding load mbarrier\.try_wait\S* #10: the next barrier": LATER,
    r"attention sm90 sliding load mbarrier\.try_wait\S* #(1[123]$|1[23]: the next barrier)": ALONE,
    r"attention sm90 sliding multiply bar\.warp\.sync #[01]$": TURNED,
    r"attention sm90 sliding multiply wgmma\.commit_group\S* #(0|1|10)$": ONE_WAIT,
    r"attention sm90 sliding multiply wgmma\.fence\S* #([1-5]|9|1[01])$": FENCE_BEFORE,
    r"attention sm90 parts init mbarrier\.init\S* #1[01]($|: one arrival more)": Q_SLOTS,
    r"chunks paged init mbarrier\.init\S* #1[01]($|: one arrival more)": Q_SLOTS,
    r"chunks paged load mbarrier\.try_wait\S* #1$": K_BEHIND,
    r"chunks paged multiply mbarrier\.try_wait\S* #0: the next barrier": ONE_BLOCK,
    r"chunks paged load mbarrier\.try_wait\S* #([789]|10)$": ALONE,
    r"chunks paged multiply bar\.warp\.sync #1$": ITEMS,
    r"chunks paged multiply wgmma\.fence\S* #[246]$": FENCE_BEFORE,
    r"attention sm90 one Q init mbarrier\.init\S* #7($|: one arrival more)": Q_SLOTS,
    r"attention sm90( (in turn|packed|modified|lists|fp8|parts))? load mbarrier\.try_\S* #6: the next barrier$": LATER,
    r"attention sm90 (one Q|direct) load mbarrier\.try_wait\S* #(0$|6($|: the next barrier))": ITEMS,
    r"attention sm90 (one Q|direct) load mbarrier\.try_wait\S* #3: the next barrier": BOTH,
    rf"{SM90} load mbarrier\.try_wait\S* #([789]|10)$": ALONE,
    r"attention sm90( (in turn|one Q|packed|modified|lists|parts))? load mbarrier\.try\S* #8: the next barrier": ALONE,
    r"attention sm90 (in turn|one Q|direct) load mbarrier\.try_wait\S* #9: the next barrier": ALONE,
    rf"{SM90} multiply bar\.warp\.sync #1$": ITEMS,
    r"attention sm90 (one Q|direct) multiply bar\.warp\.sync #0$": ITEMS,
    rf"{SM90} multiply wgmma\.fence\S* #6$": FENCE_BEFORE,
    r"attention sm90( one Q| packed| modified| lists| direct)? multiply wgmma\.fence\S* #[24]$": FENCE_BEFORE,
    r"attention sm90 parts multiply wgmma\.fence\S* #[2358]$": FENCE_BEFORE,
    rf"{FEW} load mbarrier\.try_wait\S* #2$": Q_RELEASE,
    rf"{FEW} load mbarrier\.try_wait\S* #([789]|10)$": ALONE,
    r"few queries in pairs load mbarrier\.try_wait\S* #6: the next barrier": LATER,
    r"few queries paged load_keys mbarrier\.try_wait\S* #2$": Q_RELEASE,
    r"few queries paged load_keys mbarrier\.try_wait\S* #([567]$|7: the next barrier)": ALONE,
    r"few queries paged load_values mbarrier\.try_wait\S* #1$": ALONE,
    rf"{FEW} multiply wgmma\.fence\S* #[24]$": FENCE_BEFORE,
    r"latent rows load mbarrier\.try_wait\S* #[567]$": ALONE,
    r"latent rows score setmaxnreg\.dec": NO_FEWER,
    r"latent rows score bar\.warp\.sync #0$": ITEMS,
    r"latent rows (score bar\.warp\.sync #3|value bar\.warp\.sync #1)$": READ_BEFORE_WGMMA,
    r"latent rows (score bar\.warp\.sync #6|value bar\.warp\.sync #4)$": CONVERGENT,
    r"latent rows value mbarrier\.try_wait\S* #2$": SCORED,
    r"latent rows value bar\.warp\.sync #0$": LAST_ITEM,
    r"latent rows score wgmma\.commit_group\S* #[024]$": ONE_GROUP,
    r"latent rows score wgmma\.wait_group\S* #[13]($|: a group more)": IN_TIME,
    r"latent rows score mbarrier\.try_wait\S* #4: the next barrier$": EVEN,
    r"(few queries( paged)?|latent rows), combine( of many)? kernel bar\.warp\.sync #0$": PROMPT,
    rf"{FEW} multiply bar\.warp\.sync #1$": PROMPT,
    r".* griddepcontrol\.launch_dependents": HINT,
    r"attention sm100.* kernel tcgen05\.fence::before\w* #1$": BEFORE_DEALLOC,
    r"attention sm100 load mbarrier\.try_wait\S* #[04]: the next barrier": KEYS,
    r"attention sm100 load mbarrier\.try_wait\S* #1: the next barrier": OTHER_Q,
    r"attention sm100 load mbarrier\.try_wait\S* #2$": PART,
    r"attention sm100 load mbarrier\.try_wait\S* #[67]$": ALONE,
    r"attention sm100 multiply mbarrier\.try_wait\S* #2[47]($|: the next barrier)": NO_SCORES,
    r"attention sm100 multiply tcgen05\.fence::after\w* #([258]|1[147])$": OWN,
    r"attention sm100 multiply tcgen05\.commit\S* #(7|1[39]): arrives at once": MMA_WAIT,
    r"attention sm100 multiply tcgen05\.commit\S* #(8|14): arrives at once": VALUES,
    r"attention sm100 multiply tcgen05\.commit\S* #16: arrives at once": FIRST_Q,
    r"attention sm100 softmax tcgen05\.fence::before\w* #[0347]$": NUMBERS,
    r"attention sm100 softmax bar\.warp\.sync #[1256]$": TOGETHER,
    r"attention sm100 correct tcgen05\.fence::before\w* #[01]$": TILE_FENCE,
    r"attention sm100 correct tcgen05\.fence::before\w* #[45]$": NUMBER_READ,
    r"attention sm100 correct cp\.async\.bulk\.wait_group\.read #0: a group more": STRIPS,
    r"attention sm100 correct cp\.async\.bulk\.wait_group\.read #1($|: a group more)": ALL_READ,
    r"attention sm100 correct bar\.warp\.sync #8$": ALL_READ,
    r"attention sm100 correct cp\.async\.bulk\.commit_group #0$": "the next one commits its copies too",
    r"attention sm100 one tile load mbarrier\.try_wait\S* #1$": K_FIRST,
    r"attention sm100 one tile load mbarrier\.try_wait\S* #[56]($|: the next barrier)": ALONE,
    r"attention sm100 one tile multiply mbarrier\.try_wait\S* #16($|: the next barrier)": NO_SCORES,
    r"attention sm100 one tile multiply tcgen05\.fence::after\w* #[258]$": OWN,
    r"attention sm100 one tile multiply tcgen05\.commit\S* #([48]|12): arrives at once": MMA_WAIT,
    r"attention sm100 one tile multiply tcgen05\.commit\S* #[59]: arrives at once": VALUES,
    r"attention sm100 one tile multiply tcgen05\.commit\S* #10: arrives at once": K_FIRST,
    r"attention sm100 one tile softmax tcgen05\.fence::before\w* #[036]$": NUMBERS,
    r"attention sm100 one tile softmax bar\.warp\.sync #[1245]$": TOGETHER,
    r"attention sm100 one tile correct tcgen05\.fence::before\w* #2$": NUMBER_READ,
    r"attention sm100 packed load mbarrier\.try_wait\S* #[15]: the next barrier": KEYS,
    r"attention sm100 packed load mbarrier\.try_wait\S* #2: the next barrier": OTHER_Q,
    r"attention sm100 packed load mbarrier\.try_wait\S* #3$": PART,
    r"attention sm100 packed load mbarrier\.try_wait\S* #([89]|10)$": ALONE,
    r"attention sm100 packed multiply mbarrier\.try_wait\S* #2[58]($|: the next barrier)": NO_SCORES,
    r"attention sm100 packed multiply tcgen05\.fence::after\w* #([258]|1[147])$": OWN,
    r"attention sm100 packed multiply tcgen05\.commit\S* #(7|1[39]): arrives at once": MMA_WAIT,
    r"attention sm100 packed multiply tcgen05\.commit\S* #(8|14): arrives at once": VALUES,
    r"attention sm100 packed multiply tcgen05\.commit\S* #16: arrives at once": FIRST_Q,
    r"attention sm100 packed softmax tcgen05\.fence::before\w* #[0347]$": NUMBERS,
    r"attention sm100 packed softmax mbarrier\.try_wait\S* #5: the next barrier": NEXT_PART,
    r"attention sm100 packed softmax bar\.warp\.sync #[2378]$": TOGETHER,
    r"attention sm100 packed correct tcgen05\.fence::before\w* #[01]$": TILE_FENCE,
    r"attention sm100 packed correct tcgen05\.fence::before\w* #[45]$": NUMBER_READ,
    r"attention sm100 packed correct cp\.async\.bulk\.wait_group\.read #0: a group more": STRIPS,
    r"attention sm100 packed correct cp\.async\.bulk\.wait_group\.read #1($|: a group more)": ALL_READ,
    r"attention sm100 packed correct bar\.warp\.sync #9$": ALL_READ,
    r"attention sm100 packed correct cp\.async\.bulk\.commit_group #0$": "the next one commits its copies too",
    r"attention sm90 lists multiply mbarrier\.try_wait\S* #0: the next barrier": BOTH,
    r"few queries sm100 init mbarrier\.init\S* #2[013]($|: one arrival more)": UNUSED,
    r"few queries sm100 load mbarrier\.try_wait\S* #[12]$": KEPT,
    r"few queries sm100 load mbarrier\.try_wait\S* #[789]$": ALONE,
    r"few queries sm100 multiply mbarrier\.try_wait\S* #3$": IN_ORDER,
    r"few queries sm100 multiply tcgen05\.commit\S* #4: arrives at once": KEPT,
    r"few queries sm100 softmax bar\.warp\.sync #[12]$": TOGETHER,
    r"few queries sm100 softmax bar\.warp\.sync #3$": PROMPT,
    r"backward sm100 load mbarrier\.try_wait\S* #(2($|: the next barrier)|3$)": ALONE,
    r"backward sm100 multiply mbarrier\.try_wait\S* #5: the next barrier": REST,
    r"backward sm100 load mbarrier\.try_wait\S* #1$": TILES,
    r"backward sm100 multiply tcgen05\.commit\S* #6: arrives at once": TILES,
    r"backward sm100 multiply tcgen05\.fence::after\w* #3$": OWN,
    r"backward sm100 compute bar\.warp\.sync #[01]$": TOGETHER,
    r"backward sm100 add bar\.warp\.sync #0$": TOGETHER,
    r"backward sm100 kernel tcgen05\.fence::\w+ #0$": FRESH,
    r"(few queries|backward) sm100 kernel tcgen05\.fence::before\w* #1$": BEFORE_DEALLOC,
    rf"{GRADIENTS} load mbarrier\.try_wait\S* #1$": TILES,
    r"backward sm90( of 96| ordered| ascending)? multiply wgmma\.commit_group\S* #[2389]$": TILES,
    r"backward sm90 long multiply wgmma\.commit_group\S* #([2349]|1[01])$": TILES,
    r"backward sm90 multiply wgmma\.fence\S* #([14567]|1[01])$": FENCE_BEFORE,
    r"backward sm90 (of 96|ordered|ascending) multiply wgmma\.fence\S* #([1457]|1[01])$": FENCE_BEFORE,
    r"backward sm90 long multiply wgmma\.fence\S* #([1568]|1[23])$": FENCE_BEFORE,
    r"backward sm90 long save griddepcontrol\.wait": "the adds come after loads that waited for the launch before",
    r"backward sm90 long save cp\.async\.bulk\.wait_group #0($|: a group more)": HINT,
    rf"{EARLY} multiply wgmma\.commit_group\S* #[27]$": TILES,
    rf"{EARLY} multiply wgmma\.fence\S* #[1345689]$": FENCE_BEFORE,
    rf"{EARLY} multiply wgmma\.wait_group\S* #[27]($|: a group more)": TILES,
    r"backward sm90( of 96| long| ordered| ascending)? multiply wgmma\.wait_group\S* #[27]($|: a group more)": TILES,
    r"backward sm90 wide value_gradients wgmma\.fence\S* #[247]$": FENCE_BEFORE,
    r"backward sm90 wide key_gradients wgmma\.fence\S* #[23467]$": FENCE_BEFORE,
    r"backward sm90 wide key_gradients wgmma\.commit_group\S* #[14]$": ONE_WAIT,
    r"backward sm90 wide value_gradients wgmma\.commit_group\S* #4$": ONE_WAIT,
    r"backward sm90 wide value_gradients wgmma\.wait_group\S* #3($|: a group more)": LAST_STEP,
    rf"{GRADIENTS} multiply cp\.async\.bulk\.commit_group #0$": "the next one commits its copies too",
}
ENDS_LATER = "the other half ends later"
ONE_PAGE = "(pair|alone|swapped|slices|multicast)"  # the kernels of gemm/sm100/gemm.py, and gemm/sm100/multicast.py
FENCES = r"tcgen05\.fence::\w+"
# kernel, role, opcode, its index in the role, and the change: reason
REDUNDANT = {
    r".* end bar\.warp": LANE_ORDER,
    r".* tcgen05\.relinquish": "no other CTA on the SM waits to allocate",
    rf"(memory_flow|example 0.|attention sm100.*|few queries sm100) kernel {FENCES} #0$": FRESH,
    rf"blackwell (?!{ONE_PAGE}).* kernel {FENCES} #0$": FRESH,
    rf"blackwell ({ONE_PAGE}|cluster|halves) sync {FENCES} #0$": FRESH,
    r"blackwell cluster (store tcgen05\.fence::before|dealloc tcgen05\.fence::after)\S* #0$": BEFORE_DEALLOC,
    r"blackwell (cluster|multicast) store mbarrier\.try_wait\.parity\.shared\S* #0: the next barrier": ENDS_LATER,
    r"blackwell multicast load mbarrier\.try_wait\S* #0: the next barrier": ENDS_LATER,
    r"blackwell cluster store bar\.warp\.sync #5$": TOGETHER,
    r"blackwell cluster wait barrier\.cluster\.wait": "the warp exits after it, and no other warp waits for it",
    rf"blackwell {ONE_PAGE} kernel tcgen05\.fence::before\w* #0$": BEFORE_DEALLOC,
    r"scaled .* kernel tcgen05\.fence::\w+ #0$": FRESH,
    r"scaled (2 store bar\.warp\.sync #3|3 store bar\.warp\.sync #7|[567] store bar\.warp\.sync #1)$": TOGETHER,
    r"(scaled 7|blackwell swapped) store bar\.warp\.sync #0$": "the warp synchronises again before it writes the block",
    r"scaled 6 mma mapa\S* #0: no peer": "only the leader multiplies: the barrier is its own",
    r"scaled 1 kernel (cp\.async\.bulk\.wait_group\.read|bar\.warp\.sync) #0($|: a group)": ONLY,
    r"(memory_flow|blackwell (?!5).*|scaled .*|example 0.) kernel tcgen05\.fence::before\w* #1$": BEFORE_DEALLOC,
    r"blackwell (pair store bar\.warp\.sync #(7|16)|halves store bar\.warp\.sync #3)$": TOGETHER,
    r"blackwell (alone store bar\.warp\.sync #7|swapped store bar\.warp\.sync #1)$": TOGETHER,
    r"blackwell (alone|swapped) store mbarrier\.try_wait\S* #0: the next barrier": BOTH,
    r"blackwell 5 kernel tcgen05\.fence::before\w* #2": BEFORE_DEALLOC,
    r"blackwell 5 kernel barrier\.cluster\.wait\S* #3": SAME_ORDER,
    r"blackwell 5 kernel barrier\.cluster\.arrive\S* #[23]: relaxed": SAME_ORDER,
    r"blackwell 5 kernel barrier\.cluster\.arrive\S* #1: relaxed": "bar.sync and the next cluster barrier order it",
    r"blackwell 5 drain mbarrier\.try_wait\S* #1($|: the next barrier)": ANEW,
    r"blackwell 4 kernel barrier\.cluster\.(wait\S* #1|arrive\S* #1: relaxed)$": READ_BEFORE,
    r"blackwell 1 kernel tcgen05\.fence::after\w* #1": "only the thread's own MMAs came before",
    r"blackwell (6 epilogue bar\.warp\.sync #2|(7|launch control) epilogue bar\.warp\.sync #4)": TOGETHER,
    r"blackwell (8 epilogue bar\.warp\.sync #3|9 epilogue bar\.warp\.sync #16)": TOGETHER,
    r"blackwell 6 epilogue mapa\S* #0: no peer": "only the leader stores: the barrier is its own",
    r"blackwell launch control mma mbarrier\.try_wait\S* #0: the next barrier": OTHER,
    r"(blackwell launch control|scaled 6) schedule bar\.warp\.sync #1": NEXT,
    r"(blackwell 10|example 09) epilogue bar\.warp\.sync #(7|16)$": TOGETHER,
    r"(blackwell (10|pair)|example 09) mma mbarrier\.try_wait\S* #(3($|: the next barrier)|6$)": WAVE,
    r"(blackwell (10|pair)|example 09) mma mbarrier\.try_wait\S* #0: the next barrier": HALVES,
    r"blackwell [6789] epilogue bar\.warp\.sync #": FOLLOWS,
    r"blackwell launch control epilogue bar\.warp\.sync #[0-3]": FOLLOWS,
    r"hopper 2 kernel mbarrier\.try_wait\S* #0": FIRST,
    r"hopper 1 kernel mbarrier\.try_wait\S* #0": "the thread that loads has itself waited for the MMAs",
    r"hopper 1 kernel mbarrier\.try_wait\S* #2": ALONE,
    r"blackwell ([2345] kernel bar\.warp\.sync #0|1 kernel bar\.warp\.sync #[01])": LANE_ORDER,
    r"hopper [12] kernel bar\.warp\.sync #[01]": LANES,
    r"hopper [1-5] \w+ cp\.async\.bulk\.wait_group\.read #[01]": BLOCKS,
    r"hopper [1-5] \w+ cp\.async\.bulk\.wait_group\.read #[01]: a group more": BLOCKS,
    r"hopper [12] kernel bar\.warp\.sync #[24]": BLOCKS,
    r"hopper [345] multiply bar\.warp\.sync #[02]": BLOCKS,
    r"hopper [345] multiply (cp\.async\.bulk\.wait_group #0|bar\.warp\.sync #8)": EXITS,
    r"hopper [345] multiply cp\.async\.bulk\.wait_group\.read #4": EXITS,
    r"hopper [345] multiply cp\.async\.bulk\.wait_group(\.read #4| #0): a group more": EXITS,
    r"hopper [3456] load mbarrier\.try_wait\S* #1": ALONE,
    r"(blackwell 2 kernel|blackwell [345] loads|hopper 2 kernel) mbarrier\.try_wait\S* #0: the next barrier": LATER,
    r"(hopper ([13-6]|slices|16 rows|two widths|pingpong)|all-gather) \w+ mapa\S* #\d: no peer": OWN_BARRIER,
    r"(all-gather|reduce-scatter) \w+ fence\.acq_rel\.sys": TRAP,
    r"(hopper (slices|16 rows)|all-gather|reduce-scatter) load mbarrier\.try_wait\S* #1$": ALONE,
    r"hopper (two widths|pingpong) load mbarrier\.try_wait\S* #2$": ALONE,
    r"hopper (pair )?two widths multiply cp\.async\.bulk\.wait_group\.read #[01]($|: a group more)": BLOCKS,
    r"hopper (pair )?two widths multiply bar\.warp\.sync #[02]$": BLOCKS,
    r"hopper split multiply mbarrier\.arrive\S* #1$": LAST_SLOT,
    r"hopper pair two widths multiply mapa\S* #3: no peer": LAST_SLOT,
    r"hopper (fp8 )?split sum_up (cp\.async\.bulk\.wait_group\.read|bar\.warp\.sync) #0": ONLY,
    r"hopper (fp8 )?split sum_up cp\.async\.bulk\.wait_group\.read #0: a group more": ONLY,
    r"hopper fp8 split multiply wgmma\.fence\S* #1": "the fence before orders all registers, and none was used since",
    r"hopper fp8 split multiply mapa\S* #0: no peer": DATA,
    r"example 04 kernel mapa\S* #0: no peer": DATA,
    r"scaled [3567] kernel barrier\.cluster\.arrive\S* #0: relaxed": INIT,
    r"(blackwell ([6-9]|10|launch control)|example 0[49]) kernel barrier\.cluster\.arrive\S* #0: relaxed": INIT,
    r"mma\.sync cp\.async compute mbarrier\.try_wait\S* #0($|: the next barrier)": QUERIES,
    r"mma\.sync cp\.async load cp\.async\.mbarrier\S* #0: arrives at once": QUERIES,
    r"mma\.sync cp\.async init fence\.mbarrier_init": "no engine uses its mbarriers, and bar.sync orders threads",
    r"mma\.sync cp\.async compute fence\.proxy": "cp.async writes through the generic proxy, as threads do",
    r"mma\.sync gemm [12] kernel bar\.warp\.sync #0$": LANES,
    r"mma\.sync gemm [12] kernel (cp\.async\.bulk\.wait_group\.read #[01]|bar\.warp\.sync #[24])($|: a group)": BLOCKS,
    r"mma\.sync gemm 2 kernel mbarrier\.try_wait\S* #0($|: the next barrier)": FIRST,
    r"mma\.sync gemm 4 multiply (cp\.async\.bulk\.wait_group\.read #[01]|bar\.warp\.sync #[13])($|: a group)": BLOCKS,
    r"mma\.sync gemm 4 multiply cp\.async\.bulk\.wait_group(\.read #4| #0)($|: a group)": EXITS,
    r"mma\.sync gemm 4 multiply bar\.warp\.sync #9$": EXITS,
    r"backward sm120 by query load mbarrier\.try_wait\S* #(0($|: the next barrier)|1$)": FIRST,
    r"backward sm120 by query load mbarrier\.try_wait\S* #2: the next barrier": BOTH,
    r"backward sm120 by query compute (fence\.proxy|bar\.warp\.sync)\S* #2$": AFTER_K,
    r"backward sm120 by key load mbarrier\.try_wait\S* #1$": AFTER_Q,
    r"backward sm120 by key compute (fence\.proxy|bar\.warp\.sync)\S* #0$": AFTER_Q,
    r"backward sm120 by key compute cp\.async\.bulk\.commit_group #0$": "the next one commits its copies too",
    rf"{MMA} mbarrier\.try_wait\S* #0($|: the next barrier)": FIRST,
    rf"{MMA} mbarrier\.try_wait\S* #2$": "the thread that loads has synchronised with all readers at bar.sync",
    rf"{MMA} bar\.warp\.sync #0": LANES,
    r"mma\.sync (rows|helpers|two-ten) kernel bar\.sync #[23]$": "a warp masks, scales and converts rows of its own",
    rf"({MMA} (fence\.proxy|bar\.warp)\S* #[23]|mma\.sync fewer-syncs compute fence\.proxy\S* #[23])": SYNCED,
    r"mma\.sync fewer-syncs compute bar\.warp\.sync #[12]": SYNCED,
    rf"({MMA}|mma\.sync fewer-syncs compute) cp\.async\.bulk\.commit_group #0": "the next one commits its copy too",
    r"(hopper (\d|fp8|delayed|.*widths|.*pingpong)|all-gather|reduce-scatter) multiply setmaxnreg\.inc": REGISTERS,
    r"(attention|backward) sm90.* multiply setmaxnreg\.inc": REGISTERS,
    r"backward sm90 wide (value|key)_gradients setmaxnreg\.inc": REGISTERS,
    r"(attention sm100.* softmax|backward sm100 (compute|add)|chunks paged multiply) setmaxnreg\.inc": REGISTERS,
    r"(latent rows value|few queries in pairs multiply) setmaxnreg\.inc": REGISTERS,
    **ATTENTION,
}


def expected(name: str, edit: Edit) -> tuple[set[str], str]:
    """Returns the rules, one of which finds the edit, and the reason of a redundant instruction."""
    for pattern, reason in REDUNDANT.items():
        if re.match(pattern, f"{name} {edit}") and (edit.what == REMOVED or ": " in pattern):
            return set(), reason
    removed = next((rules for opcode, rules in FORMULA.items() if re.match(opcode, edit.opcode)), "")
    rules = removed if edit.what == REMOVED else CHANGED[edit.what]
    return set(filter(None, rules.split(", "))), ""
