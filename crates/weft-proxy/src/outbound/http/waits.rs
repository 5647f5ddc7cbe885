//! Where a request waits for its answer, so that a timeout is held against the endpoint that let it wait. A client that
//! gives up waiting leaves no trace here.

use crate::outbound::endpoint::Member;
use std::{cell::RefCell, rc::Rc};
use weft_model::outbound::FailureAccrual;

#[derive(Default)]
pub(super) struct Waits(RefCell<Option<(Rc<Member>, FailureAccrual)>>);

impl Waits {
    /// The request waits at an endpoint whose failures are counted.
    pub(super) fn begin(&self, member: &Rc<Member>, accrual: Option<&FailureAccrual>) {
        if let Some(accrual) = accrual {
            *self.0.borrow_mut() = Some((member.clone(), *accrual));
        }
    }

    /// It does not any more: the endpoint answered, or failed in a way that is counted elsewhere.
    pub(super) fn end(&self) {
        self.0.take();
    }

    /// The route's patience ended. `whole`: the endpoint had been given the whole request, or could have read it; a
    /// client that is slow to send says nothing about the server.
    pub(super) fn out_of_time(&self, whole: bool) {
        if let Some((member, accrual)) = self.0.take()
            && whole
        {
            member.standing.hung(&accrual);
        }
    }
}
