//! BPF instructions and an assembler with jump labels. Source: RFC 9669.

use std::os::fd::{AsFd, AsRawFd};

/// One BPF instruction: opcode, registers (destination in the low half), offset, immediate value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    /// Creates an instruction from its opcode and operands.
    pub(super) const fn new(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Self {
        Self { code, registers: source << 4 | destination, offset, immediate }
    }

    /// `destination = immediate`.
    pub(super) const fn set(destination: u8, immediate: i32) -> Self {
        Self::new(0xb7, destination, 0, 0, immediate)
    }

    /// `destination = source`.
    pub(super) const fn copy(destination: u8, source: u8) -> Self {
        Self::new(0xbf, destination, source, 0, 0)
    }

    /// Calls a helper function: arguments in registers 1 to 5, result in register 0.
    pub(super) const fn call(function: i32) -> Self {
        Self::new(0x85, 0, 0, 0, function)
    }

    /// Ends the program. Register 0 is the return code.
    pub(super) const fn exit() -> Self {
        Self::new(0x95, 0, 0, 0, 0)
    }

    /// `destination = map`. Occupies two instructions.
    pub(super) fn map(destination: u8, map: &impl AsFd) -> [Self; 2] {
        const PSEUDO_MAP_FD: u8 = 1;
        [
            Self::new(0x18, destination, PSEUDO_MAP_FD, 0, map.as_fd().as_raw_fd()),
            // The upper half of a 64-bit immediate.
            Self::new(0, 0, 0, 0, 0),
        ]
    }

    /// `destination = &map[0] + offset`, of an array map with one value. Occupies two instructions.
    pub(super) fn value(destination: u8, map: &impl AsFd, offset: i32) -> [Self; 2] {
        const PSEUDO_MAP_VALUE: u8 = 2;
        [Self::new(0x18, destination, PSEUDO_MAP_VALUE, 0, map.as_fd().as_raw_fd()), Self::new(0, 0, 0, 0, offset)]
    }
}

/// The number of bytes of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Width {
    Byte = 0x10,
    Short = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// An unsigned comparison of two registers, or of a register and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Test {
    Equal = 0x10,
    Greater = 0x20,
    AtLeast = 0x30,
    /// True if the operands have a set bit in common.
    Shares = 0x40,
    Differs = 0x50,
    Less = 0xa0,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Operation {
    Add = 0x00,
    Subtract = 0x10,
    Multiply = 0x20,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    #[cfg(feature = "bench")]
    Modulo = 0x90,
    Xor = 0xa0,
}

/// Assembles a program. `L` is the type of jump labels.
#[derive(Clone, Debug)]
pub(super) struct Assembler<L> {
    instructions: Vec<Instruction>,
    jumps: Vec<(usize, L)>,
    places: Vec<(L, usize)>,
}

impl<L: Copy + PartialEq + std::fmt::Debug> Assembler<L> {
    /// Creates an empty program.
    pub(super) const fn new() -> Self {
        Self { instructions: Vec::new(), jumps: Vec::new(), places: Vec::new() }
    }

    /// Appends instructions without jumps.
    pub(super) fn push(&mut self, instructions: impl IntoIterator<Item = Instruction>) {
        self.instructions.extend(instructions);
    }

    /// Makes `name` the label of the next instruction.
    pub(super) fn place(&mut self, name: L) {
        self.places.push((name, self.instructions.len()));
    }

    /// Jumps to the label if the test of register and number is true.
    pub(super) fn jump_if(&mut self, register: u8, test: Test, number: i32, to: L) {
        self.jumps.push((self.instructions.len(), to));
        self.push([Instruction::new(0x05 | test as u8, register, 0, 0, number)]);
    }

    /// Jumps to the label if the test of both registers is true.
    pub(super) fn jump_if_register(&mut self, register: u8, test: Test, other: u8, to: L) {
        self.jumps.push((self.instructions.len(), to));
        self.push([Instruction::new(0x0d | test as u8, register, other, 0, 0)]);
    }

    pub(super) fn jump(&mut self, to: L) {
        self.jumps.push((self.instructions.len(), to));
        self.push([Instruction::new(0x05, 0, 0, 0, 0)]);
    }

    /// `register = *(source + offset)`.
    pub(super) fn load(&mut self, width: Width, register: u8, source: u8, offset: i16) {
        self.push([Instruction::new(0x61 | width as u8, register, source, offset, 0)]);
    }

    /// `*(destination + offset) = register`.
    pub(super) fn store(&mut self, width: Width, destination: u8, register: u8, offset: i16) {
        self.push([Instruction::new(0x63 | width as u8, destination, register, offset, 0)]);
    }

    /// Atomic `*(u64 *)(destination + offset) += register`. The register becomes the previous value (Linux 5.12).
    pub(super) fn count_before(&mut self, destination: u8, register: u8, offset: i16) {
        const FETCH: i32 = 1;
        self.push([Instruction::new(0xdb, destination, register, offset, FETCH)]);
    }

    /// Atomic `*(u32 *)(destination + offset) |= register` (Linux 5.12).
    pub(super) fn or_atomic(&mut self, destination: u8, register: u8, offset: i16) {
        const OR: i32 = 0x40;
        self.push([Instruction::new(0xc3, destination, register, offset, OR)]);
    }

    /// Non-atomic `*(u64 *)(base + offset) += register`, for per-core counters. Overwrites register `scratch`.
    pub(super) fn add_to(&mut self, base: u8, register: u8, offset: i16, scratch: u8) {
        self.load(Width::Double, scratch, base, offset);
        self.apply_register(Operation::Add, scratch, register);
        self.store(Width::Double, base, scratch, offset);
    }

    /// `register = register operation number`, 64 bits.
    pub(super) fn apply(&mut self, operation: Operation, register: u8, number: i32) {
        self.push([Instruction::new(0x07 | operation as u8, register, 0, 0, number)]);
    }

    /// `register = register operation other`, 64 bits.
    pub(super) fn apply_register(&mut self, operation: Operation, register: u8, other: u8) {
        self.push([Instruction::new(0x0f | operation as u8, register, other, 0, 0)]);
    }

    /// Converts the register's lower 16 bits between network and host order.
    pub(super) fn swap_short(&mut self, register: u8) {
        self.push([Instruction::new(0xdc, register, 0, 0, 16)]);
    }

    /// Converts the register's lower 32 bits between network and host order.
    pub(super) fn swap_word(&mut self, register: u8) {
        self.push([Instruction::new(0xdc, register, 0, 0, 32)]);
    }

    /// Resolves the jumps and returns the program.
    ///
    /// # Panics
    /// If a label is missing or a jump is too long.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, to) in self.jumps {
            let place = self.places.iter().find(|(name, _)| *name == to).map(|&(_, place)| place);
            let place = place.unwrap_or_else(|| panic!("the program has no label {to:?}"));
            let distance = place.cast_signed() - at.cast_signed() - 1;
            self.instructions[at].offset = i16::try_from(distance).expect("programs are short");
        }
        self.instructions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_leads_behind_itself_by_as_many_instructions_as_are_between() {
        let mut program = Assembler::new();
        program.place("start");
        program.jump_if(1, Test::Equal, 7, "end");
        program.push([Instruction::set(0, 1)]);
        program.jump("start");
        program.place("end");
        program.push([Instruction::exit()]);
        let program = program.finish();
        assert_eq!(program[0], Instruction::new(0x15, 1, 0, 2, 7));
        assert_eq!(program[2], Instruction::new(0x05, 0, 0, -3, 0));
    }
}
