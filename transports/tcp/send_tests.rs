//! The sender, while its plan is with the kernel.

use std::io::IoSlice;
use std::sync::Arc;

use blockwire::pool::{
    BlockPool, Dtype, GatherList, KvSpec, PayloadOrder, PoolOptions, ReservedBlock,
};
use blockwire::transport::{OpId, StreamTag};
use blockwire::wire::{Header, Kind, encode_frame};
use uuid::Uuid;

use crate::credit::Unread;
use crate::seal::Sealer;
use crate::send::Sender;

const KEY: [u8; 32] = [9; 32];
const ORDER: PayloadOrder = PayloadOrder { block_tokens: 16 };

/// A payload of one block, and its bytes.
fn payload() -> (GatherList, Vec<u8>) {
    let pool = BlockPool::new(PoolOptions::new(KvSpec::uniform(16, 1, 1, 16, Dtype::F16), 1))
        .expect("memory");
    let mut blocks = pool.try_reserve(1).expect("a free block");
    blocks.iter_mut().for_each(|block| block.fill(7));
    let blocks: Vec<_> = blocks.into_iter().map(ReservedBlock::seal).collect();
    let list = GatherList::new(&pool, &blocks, ORDER, 0..16).expect("it fits");
    let bytes = vec![7; list.len() as usize];
    (list, bytes)
}

/// Plans, and puts the plan on the wire.
fn send(sender: &mut Sender, wire: &mut Vec<u8>) -> usize {
    let mut slices = [IoSlice::new(&[]); 8];
    let count = sender.plan(&mut slices);
    let before = wire.len();
    slices[..count].iter().for_each(|slice| wire.extend_from_slice(slice));
    wire.len() - before
}

#[test]
fn what_is_queued_while_a_plan_is_lent_is_no_part_of_it() {
    for sealer in [None, Some(Sealer::new(KEY))] {
        let check = sealer.as_ref().map(|_| Sealer::new(KEY));
        let mut sender = Sender::new(1 << 20, Unread::default(), true, sealer, 0, Arc::default());
        let (mut events, mut wire) = (Vec::new(), Vec::new());
        let (list, bytes) = payload();
        sender.push_stream(OpId(0), StreamTag(1), list, &mut events);
        let len = send(&mut sender, &mut wire);
        sender.lend();
        let late = encode_frame(Header::control(Kind::Message, Uuid::nil(), 0), &vec![1_u8; 9])
            .expect("short");
        sender.push_control(OpId(1), late.clone());
        sender.wrote(len, &mut events);
        while !sender.is_idle() {
            let len = send(&mut sender, &mut wire);
            sender.wrote(len, &mut events);
        }
        let header = Header::payload(1, 0, bytes.len() as u64).encode(&[]);
        let frames = [[&header[..], &bytes].concat(), late.to_vec()];
        let expected: Vec<u8> = (0..)
            .zip(&frames)
            .flat_map(|(number, frame)| {
                let tag = check.as_ref().map(|check| check.of_frame(number, frame));
                [frame.clone(), tag.map_or(Vec::new(), Vec::from)].concat()
            })
            .collect();
        assert!(wire == expected, "sealed: {}", check.is_some());
        assert_eq!(events.len(), 2);
    }
}
