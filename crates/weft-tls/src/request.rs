//! Certificate requests: what the identity service accepts.

use rcgen::{CertificateSigningRequestParams, PublicKey, SanType};
use rustls_pki_types::CertificateSigningRequestDer;
use weft_fault::{Code, Fault, Phase};
use weft_model::identity::Identity;

/// A certificate request whose signature and content were checked: for one identity and nothing else.
pub struct SigningRequest {
    identity: Identity,
    pub(crate) public_key: PublicKey,
}

/// Far above what any key needs.
const MAX_BYTES: usize = 16 * 1024;

impl SigningRequest {
    /// Reads a DER request that must ask for `identity`: an ECDSA key, one subject alternative name equal to it,
    /// a common name that is empty or equal, nothing that would make a certificate authority.
    pub fn parse(der: &[u8], identity: &Identity) -> Result<Self, Fault> {
        let refuse = |why: String| {
            Fault::new(Code::CertifyRefused).in_phase(Phase::Certify).about(identity).fact("request", why)
        };
        if der.len() > MAX_BYTES {
            return Err(refuse(format!("{} bytes are more than the {MAX_BYTES} allowed", der.len())));
        }
        let csr = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(der))
            .map_err(|e| refuse(format!("cannot be read: {e}")))?;
        let key = csr.public_key.algorithm();
        if key != &rcgen::PKCS_ECDSA_P256_SHA256 && key != &rcgen::PKCS_ECDSA_P384_SHA384 {
            return Err(refuse("the key is not ECDSA P-256 or P-384".into()));
        }
        let wanted = |san: &SanType| match san {
            SanType::DnsName(name) => {
                !identity.is_uri() && name.as_str().eq_ignore_ascii_case(identity.as_str())
            }
            SanType::URI(uri) => identity.is_uri() && uri.as_str() == identity.as_str(),
            _ => false,
        };
        match csr.params.subject_alt_names.as_slice() {
            [san] if wanted(san) => {}
            other => {
                return Err(refuse(format!(
                    "subject alternative names {other:?} are not the identity alone"
                )));
            }
        }
        for (kind, value) in csr.params.distinguished_name.iter() {
            let text = text_of(value);
            if *kind != rcgen::DnType::CommonName
                || !(text.is_empty() || text.eq_ignore_ascii_case(identity.as_str()))
            {
                return Err(refuse(format!("subject {text:?} is not the identity")));
            }
        }
        if matches!(csr.params.is_ca, rcgen::IsCa::Ca(_)) {
            return Err(refuse("asks for a certificate authority".into()));
        }
        Ok(SigningRequest { identity: identity.clone(), public_key: csr.public_key })
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }
}

fn text_of(value: &rcgen::DnValue) -> String {
    match value {
        rcgen::DnValue::Utf8String(s) => s.clone(),
        rcgen::DnValue::PrintableString(s) => s.as_str().to_owned(),
        rcgen::DnValue::Ia5String(s) => s.as_str().to_owned(),
        rcgen::DnValue::TeletexString(s) => s.as_str().to_owned(),
        other => format!("{other:?}"),
    }
}
