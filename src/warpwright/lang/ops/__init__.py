"""Operations of the kernel language: one call, one instruction, named as PTX names it."""
