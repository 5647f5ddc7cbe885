//! Explanations and checks: one timeline for one question.
