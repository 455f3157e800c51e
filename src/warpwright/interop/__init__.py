"""Operations of the package inside other libraries: ``import warpwright.interop.torch``."""
