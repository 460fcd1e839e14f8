//! What is measured, one module for each scenario.

pub mod configmap;
pub mod density;
pub mod restart;
pub mod services;
pub mod start;
